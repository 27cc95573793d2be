"""Certificates: the function, the command, their words, and the bounds against the truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.certificate import Certificate, Knowledge, certify, certify_rows
from fairrf_lightning.certificate.bound import Box
from fairrf_lightning.certificate.knowledge import sample_box
from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.report.text import unmeasured_verdict
from tests.conftest import Refused
from tests.trainers import quiet_trainer

Run = Callable[..., None]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["train.py"])
        quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        main(["fit", *quiet, "--data=compas", "--trainer.max_epochs=4", "--lambda_update.every_n_steps=5"])
    return folder / "lightning_logs/version_0/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "audit.csv"
    COMPASDataModule().read().sample(300, random_state=0).to_csv(path, index=False)
    return path


@pytest.fixture
def run(checkpoint: Path, cli: Callable[[str], None]) -> Run:
    del cli  # for its folder
    return lambda *args: main(["certify", str(checkpoint), *map(str, args)])


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
    assert "if the numbers given for S hold for them" in printed
    assert "measured, as S is in the data" in printed
    assert all(line in printed for line in found["statements"])


def test_sample_gives_a_certificate(run: Run, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--audit-sample", sample, "--group", "African-American", "--output", "certificate.json")
    found = json.loads(Path("certificate.json").read_text())
    assert found["known_at_level"] == pytest.approx(0.96)
    assert set(found["correlations"]) >= {"decile_score", "sex=Male"}
    assert abs(found["measured"]["prob"]) <= found["rows"]["prob"]["bound"]
    assert "with 95 % confidence if the sample was drawn at random from them" in capsys.readouterr().out


def test_sample_may_name_another_attribute_and_columns(
    run: Run, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--audit-sample", sample, "--sensitive", "sex", "--columns", "age,priors_count", "--split", "val")
    printed = capsys.readouterr().out
    assert "Known about 'Female'" in printed
    assert "priors_count" in printed
    assert "1,234 rows" in printed
    assert "measured" not in printed  # the data's own S is another attribute


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name either --proxies or --audit_sample"),
        (["--proxies", "a", "--audit-sample", "b"], "name either --proxies or --audit_sample"),
        (["--proxies", "a", "--level", "95"], "--level 95.0"),
        (["--proxies", "a", "--level", "x"], "--level: expected float"),
        (["--proxies", "no.yaml", "--group", "Asian"], "--group belongs to --audit_sample"),
        (["--proxies", "no.yaml"], "cannot be read"),
        (["--audit-sample", "SAMPLE"], "--group"),
        (["--audit-sample", "SAMPLE", "--columns", "agee", "--group", "Asian"], "did you mean 'age'"),
        (["--audit-sample", "SAMPLE", "--sensitive", "gender"], "there is no column 'gender'"),
        (["--audit-sample", "SAMPLE", "--group", "Asian"], "no such group of race"),
    ],
)
def test_errors_are_a_few_lines(
    options: list[str], message: str, checkpoint: Path, sample: Path, refused: Refused
) -> None:
    options = [str(sample) if option == "SAMPLE" else option for option in options]
    assert message in refused(["certify", str(checkpoint), *options])


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
    output: str, message: str, refused: Refused
) -> None:
    Path("file").touch()
    Path("folder").mkdir()
    # Not even the checkpoint is looked for.
    assert message in refused(f"certify none.ckpt --proxies none.yaml --output {output}")


def test_the_earlier_spelling_is_accepted_and_checked(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    args = ["certify", "--ckpt_path", str(checkpoint), "--template", "proxies.yaml", "--data"]
    main([*args, "compas"])
    main([*args, "compas"])
    assert "decile_score: [-1.0, 1.0]" in Path("proxies.yaml").read_text()
    assert "exists already" in capsys.readouterr().out
    assert "trained on COMPASDataModule, not on AdultDataModule" in refused([*args, "adult"])


def test_the_function_returns_what_the_command_prints(checkpoint: Path, sample: Path) -> None:
    found = certify(checkpoint.parent.parent, audit_sample=sample, group="African-American")
    bound = found.rows["hard"].bound
    assert f"decisions {bound:.3f}; 1,852 rows, group 'African-American'" in repr(found)
    assert f"{bound:.3f}" in found._repr_html_()
    assert found.model["split"] == "test"
    assert found.bounds_table()["decisions"].iloc[3] == bound


def some_rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(size, 1))
    return torch.from_numpy(1 / (1 + np.exp(-3 * columns[:, 0]))), torch.from_numpy(
        np.hstack([columns, columns])
    )


def test_impossible_intervals_of_a_sample_are_widened_and_said_to_be() -> None:
    preds, columns = some_rows(200)
    low, high = np.array([0.3, 0.5]), np.array([0.4, 0.6])  # of two columns that are one
    sampled = Knowledge(["a", "b"], Box(low, high), (0.4, 0.5), "g", "sample", level=0.96)
    found = certify_rows(preds, columns, sampled)
    assert found.widened >= 0.05
    lines = list(found.statements())
    assert any("widened" in line for line in lines)
    assert any("too few" in line for line in lines)
    given = Knowledge(["a", "b"], Box(low, high), (0.4, 0.5), "g", "file")
    with pytest.raises(ValueError, match="no S can have"):
        certify_rows(preds, columns, given)


def test_a_gap_that_is_certain_is_said_to_be() -> None:
    preds, columns = some_rows(500)
    a = np.array([0.7, 0.7])
    found = certify_rows(preds, columns, Knowledge(["a", "b"], Box(a, a), (0.5, 0.5), "g", "file"))
    assert found.rows["prob"].low > 0
    assert any(f"at least {100 * found.rows['prob'].low:.1f} points" in line for line in found.statements())


# --- a certificate that adds nothing


def write(certificate: Certificate, path: Path) -> None:
    path.write_text(json.dumps({"weights": "y"} | certificate.to_dict()))


def certified(low: float, high: float, *, bias: float = 0.0, level: float | None = 0.96) -> Certificate:
    rng = np.random.default_rng(0)
    column = rng.normal(size=(900, 1))
    scores = torch.from_numpy(rng.normal(size=900) + column[:, 0] + bias)
    known = Knowledge(["a"], Box(np.array([low]), np.array([high])), (0.4, 0.5), "women", "sample", level)
    return certify_rows(torch.sigmoid(scores), torch.from_numpy(column), known)


def test_what_follows_from_the_share_alone_is_not_called_certain(tmp_path: Path) -> None:
    found = certified(-1.0, 1.0)
    trivial = found.rows["hard"].by_method["share"]
    assert found.rows["hard"].bound > 0.99 * trivial
    text = " ".join(found.statements())
    assert "Certain" not in text
    assert "confidence" not in text
    for name in ("decisions", "probabilities"):
        assert f"The certificate adds nothing about the {name}" in text
    assert f"the share of 'women' and the decisions alone already give {100 * trivial:.1f} points" in text
    write(found, tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["rows"]["hard"]["adds_nothing"] is True
    read = Certificate.read(tmp_path / "c.json")
    assert read.rows == found.rows
    assert read.claim.startswith("The certificate adds nothing about the decisions")
    verdict = unmeasured_verdict(None, None, read)
    assert (verdict.tone, verdict.title) == ("unknown", "Fairness to groups is not measured here")


def test_what_the_columns_add_is_certified(tmp_path: Path) -> None:
    found = certified(-0.05, 0.05)
    assert found.rows["hard"].bound < 0.9 * found.rows["hard"].by_method["share"]
    text = " ".join(found.statements())
    assert "adds nothing" not in text
    assert "Certain for these 900 rows, with 95 % confidence" in text
    write(found, tmp_path / "c.json")
    read = Certificate.read(tmp_path / "c.json")
    assert read.to_dict() == {"weights": "y"} | found.to_dict()
    assert unmeasured_verdict(None, None, read).title == read.claim


def test_a_certain_gap_is_news_however_wide_the_bound() -> None:
    found = certified(0.75, 0.9)
    bound = found.rows["prob"]
    assert bound.low > 0
    assert not bound.adds_nothing


def test_the_same_decision_for_everyone_certifies_nothing(tmp_path: Path) -> None:
    found = certified(-0.05, 0.05, bias=50.0)
    assert found.rows["hard"].bound == 0
    assert f"The certificate says nothing about the decisions: {SAME_DECISION}." in list(found.statements())
    write(found, tmp_path / "c.json")
    assert Certificate.read(tmp_path / "c.json").claim.endswith(SAME_DECISION)


# --- real data


def fitted(data: TabularDataModule, eta: float) -> FairRFModule:
    seed_everything(0, verbose=False)
    module = FairRFModule(eta=eta)
    trainer = quiet_trainer(
        max_epochs=2,
        limit_val_batches=0,
        callbacks=[PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.5, every_n_steps=5)],
    )
    trainer.fit(module, data)
    return module.eval()


@pytest.fixture(scope="module", params=[AdultDataModule, COMPASDataModule])
def real_data(request: pytest.FixtureRequest) -> TabularDataModule:
    data: TabularDataModule = request.param(seed=0)
    return data


@pytest.mark.parametrize("eta", [0.0, 0.6], ids=["vanilla", "fairrf"])
def test_bounds_hold_on_test_rows(real_data: TabularDataModule, eta: float) -> None:
    data, module = real_data, fitted(real_data, eta)
    rows = {key: torch.cat([batch[key] for batch in data.rows_of("test")]) for key in ("inputs", "groups")}
    with torch.no_grad():
        probabilities = module.penalty.probabilities(module(rows["inputs"]))
    # Female against Male, African-American against all others
    sensitive = (rows["groups"] == 0).double()
    columns = rows["inputs"][:, list(chain(*data.related_columns.values()))].double()
    joint = np.corrcoef(np.column_stack([columns.numpy(), sensitive.numpy()]).T)
    a, q = joint[-1, :-1], float(sensitive.mean())
    names = [f"column {number}" for number in range(len(a))]
    exact = Knowledge(names, Box(a, a), (q, q), "first group", "the rows")
    drawn = np.random.default_rng(0).choice(len(columns), 300, replace=False)
    box, share = sample_box(columns.numpy()[drawn], sensitive.numpy()[drawn])
    sampled = Knowledge(names, box, share, "first group", "a sample", level=0.96)
    for known in (exact, sampled):
        found = certify_rows(probabilities, columns, known, sensitive=sensitive)
        for mode, bound in found.rows.items():
            truth = found.measured[mode]
            assert bound.low <= truth <= bound.high
            assert abs(truth) <= bound.bound <= bound.by_method["tight"] <= bound.by_method["paper"]
            limit = found.population[mode]
            assert limit is not None
            assert limit >= abs(truth)
    assert found.rows["prob"].bound < found.rows["prob"].by_method["share"]
