from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import LSACDataModule
from fairrf_lightning.short_names import SHORT_NAMES

QUIET = [
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
]


def fit(*options: str) -> Path:
    """Train for an epoch and return the checkpoint."""
    main(["fit", "--trainer.max_epochs=1", *QUIET, *options])
    return Path("lightning_logs/version_0/checkpoints/last.ckpt")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_data_module_of_the_package_has_a_short_name() -> None:
    assert {"adult", "compas", "lsac", "synthetic"} <= SHORT_NAMES["data"].keys()


def test_synthetic_trains_and_says_without_what(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = fit("--data=synthetic", "--data.n_rows=2000")
    assert "Groups: a, b. Trained without: group." in capsys.readouterr().out
    record = torch.load(checkpoint, weights_only=True)["SyntheticDataModule"]
    assert record["columns"] == ["height", "income", "hours", "skill", "practice", "lottery"]
    assert record["sensitive"] == "group"


def test_what_was_trained_with_comes_from_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data=synthetic", "--data.n_rows=2000"]
    checkpoint = fit(*data, "--data.include_sensitive=true")
    capsys.readouterr()
    main(["test", *data, f"--ckpt_path={checkpoint}", *QUIET])
    assert "Trained with: group." in capsys.readouterr().out


def test_checkpoint_without_a_record_makes_no_claim(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data=synthetic", "--data.n_rows=2000"]
    checkpoint = fit(*data)
    content: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    del content["SyntheticDataModule"]
    torch.save(content, checkpoint)
    capsys.readouterr()
    main(["test", *data, f"--ckpt_path={checkpoint}", *QUIET])
    printed = capsys.readouterr().out
    assert "does not say which columns it was trained on" in printed
    assert "Trained with" not in printed


@pytest.mark.filterwarnings("ignore:.*is NaN. there are no:UserWarning")  # 11 people are one group
def test_compas_can_be_tested_on_other_groups(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = fit("--data=compas")
    assert "Groups: African-American, Caucasian." in capsys.readouterr().out
    main(["test", "--data=compas", "--data.groups=all", f"--ckpt_path={checkpoint}", *QUIET])
    assert "Hispanic, Native American, Other." in capsys.readouterr().out


def test_lsac_trains(lsac: LSACDataModule, capsys: pytest.CaptureFixture[str]) -> None:
    fit("--data=lsac", f"--data.seed={lsac.seed}")
    assert "Groups: female, male. Trained without: sex." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data=compass"], "did you mean 'compas'"),
        (["--data=lsac", "--data.dropflawed=true"], "did you mean 'drop_flawed'"),
        (["--data=lsac", "--data.batchsize=3"], "did you mean 'batch_size'"),
        (["--data=synthetic", "--data.related=[heigth]"], "did you mean 'height'"),
        (["--data=compas", "--data.related=[scoretext]"], "did you mean 'score_text'"),
    ],
)
def test_wrong_name_answers_with_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fit", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
