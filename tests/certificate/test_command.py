"""``certify`` on a checkpoint of COMPAS, as a user runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fairrf_lightning.certificate.certify import certify
from fairrf_lightning.certificate.dual import Box
from fairrf_lightning.certificate.proxies import Proxies
from fairrf_lightning.certificate.show import statements
from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import COMPASDataModule

Run = Callable[..., None]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["train.py"])
        quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        main(
            [
                "fit",
                *quiet,
                "--data",
                "compas",
                "--trainer.max_epochs",
                "4",
                "--lambda_update.every_n_steps",
                "5",
            ]
        )
    return folder / "lightning_logs/version_0/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "audit.csv"
    COMPASDataModule().read().sample(300, random_state=0).to_csv(path, index=False)
    return path


@pytest.fixture
def run(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return lambda *args: main(
        ["certify", "--ckpt_path", str(checkpoint), "--data", "compas", *map(str, args)]
    )


def test_published_figures_give_a_certificate(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("proxies.yaml").write_text(
        "group: African-American\nshare: [0.50, 0.54]\n"
        "correlations:\n  decile_score: [0.25, 0.35]\n  sex=Male: [0.0, 0.1]\n"
        "  score_text=Low: [-0.35, -0.2]\n"
    )
    run("--proxies", "proxies.yaml", "--output", "out/certificate.json")
    printed = capsys.readouterr().out
    found = json.loads(Path("out/certificate.json").read_text())
    assert not list(Path("out").glob("*.part"))
    assert found["num_rows"] == 1852
    assert found["correlations"]["decile_score"] == [0.25, 0.35]
    for mode in ("prob", "hard"):
        assert found["rows"][mode]["low"] <= found["measured"][mode] <= found["rows"][mode]["high"]
        assert f"dDP is at most {100 * found['rows'][mode]['bound']:.1f} points" in printed
        assert found["population"][mode] >= found["rows"][mode]["bound"] - 0.02
    assert "if the figures given for S hold on them" in printed
    assert "measured, as the data tell S after all" in printed
    assert all(line in printed for line in found["statements"])


def test_sample_gives_a_certificate(run: Run, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--audit-sample", sample, "--group", "African-American", "--output", "certificate.json")
    found = json.loads(Path("certificate.json").read_text())
    assert found["known_at_level"] == pytest.approx(0.96)
    assert set(found["correlations"]) >= {"decile_score", "sex=Male"}
    assert abs(found["measured"]["prob"]) <= found["rows"]["prob"]["bound"]
    assert "with 95% confidence if the sample was drawn at random from them" in capsys.readouterr().out


def test_sample_may_name_another_attribute_and_columns(
    run: Run, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--audit-sample", sample, "--sensitive", "sex", "--columns", "age,priors_count", "--split", "val")
    printed = capsys.readouterr().out
    assert "Known of 'Female'" in printed
    assert "priors_count" in printed
    assert "1,234 rows" in printed
    assert "measured" not in printed  # the data's own S is another attribute


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name either --proxies or --audit-sample"),
        (["--proxies", "a", "--audit-sample", "b"], "name either --proxies or --audit-sample"),
        (["--proxies", "a", "--level", "95"], "--level 95.0"),
        (["--proxies", "a", "--level", "x"], "invalid float value"),
        (["--proxies", "no.yaml", "--group", "Asian"], "--group belongs to --audit-sample"),
        (["--proxies", "no.yaml"], "cannot be read"),
        (["--audit-sample", "SAMPLE"], "say by --group"),
        (["--audit-sample", "SAMPLE", "--columns", "agee", "--group", "Asian"], "did you mean 'age'"),
        (["--audit-sample", "SAMPLE", "--sensitive", "gender"], "there is no column 'gender'"),
        (["--audit-sample", "SAMPLE", "--group", "Asian"], "no such group of race"),
    ],
)
def test_errors_are_a_few_lines(
    options: list[str], message: str, run: Run, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run(*[str(sample) if option == "SAMPLE" else option for option in options])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "file/c.json",
            "--output file/c.json: cannot be written to (Not a directory); name a file in another",
        ),
        ("folder", "--output folder: this is a folder; name a file in it"),
    ],
)
def test_output_that_cannot_be_written_is_told_before_the_work(
    output: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    with pytest.raises(SystemExit):  # not even the checkpoint was looked for
        main(["certify", "--ckpt_path", "none.ckpt", "--proxies", "none.yaml", "--output", output])
    assert message in capsys.readouterr().err


def some_rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(size, 1))
    return torch.from_numpy(1 / (1 + np.exp(-3 * columns[:, 0]))), torch.from_numpy(
        np.hstack([columns, columns])
    )


def test_impossible_intervals_of_a_sample_are_widened_and_said_to_be() -> None:
    preds, columns = some_rows(200)
    low, high = np.array([0.3, 0.5]), np.array([0.4, 0.6])  # of two columns that are one
    sampled = Proxies(["a", "b"], Box(low, high), (0.4, 0.5), "g", "sample", level=0.96)
    found = certify(preds, columns, sampled)
    assert found.widened >= 0.05
    lines = list(statements(found))
    assert any("widened" in line for line in lines)
    assert any("too few" in line for line in lines)
    given = Proxies(["a", "b"], Box(low, high), (0.4, 0.5), "g", "file")
    with pytest.raises(ValueError, match="no S can have"):
        certify(preds, columns, given)


def test_a_gap_that_is_certain_is_said_to_be() -> None:
    preds, columns = some_rows(500)
    a = np.array([0.7, 0.7])
    found = certify(preds, columns, Proxies(["a", "b"], Box(a, a), (0.5, 0.5), "g", "file"))
    assert found.rows["prob"].low > 0
    assert any(f"at least {100 * found.rows['prob'].low:.1f} points" in line for line in statements(found))
