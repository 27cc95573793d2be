from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from fairrf_lightning.cli.short_names import SHORT_NAMES
from fairrf_lightning.datamodules import LSACDataModule

CLI: TypeAlias = Callable[[str], None]
FIT = "fit --trainer.max_epochs=1 --trainer.log_every_n_steps=1 --trainer.accelerator=cpu"
CHECKPOINT = Path("lightning_logs/version_0/checkpoints/last.ckpt")
TEST = f"test --ckpt_path={CHECKPOINT} --trainer.accelerator=cpu"
SYNTHETIC = "--data=synthetic --data.n_rows=2000"


def test_every_data_module_of_the_package_has_a_short_name() -> None:
    assert {"adult", "compas", "lsac", "synthetic"} <= SHORT_NAMES["data"].keys()


def test_what_was_trained_without_comes_from_the_checkpoint_only(
    cli: CLI, capsys: pytest.CaptureFixture[str]
) -> None:
    cli(f"{FIT} {SYNTHETIC}")
    assert "Groups: a, b. Trained without: group." in capsys.readouterr().out
    content: dict[str, Any] = torch.load(CHECKPOINT, weights_only=True)
    record = content.pop("SyntheticDataModule")
    assert record["columns"] == ["height", "income", "hours", "skill", "practice", "lottery"]
    assert record["sensitive"] == "group"
    torch.save(content, CHECKPOINT)
    cli(f"{TEST} {SYNTHETIC}")
    printed = capsys.readouterr().out
    assert "does not say which columns it was trained on" in printed
    assert "Trained with" not in printed


def test_what_was_trained_with_comes_from_the_checkpoint(
    cli: CLI, capsys: pytest.CaptureFixture[str]
) -> None:
    cli(f"{FIT} {SYNTHETIC} --data.include_sensitive=true")
    capsys.readouterr()
    cli(f"{TEST} {SYNTHETIC}")
    assert "Trained with: group." in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*is NaN. there are no:UserWarning")  # a group of 11 people
def test_compas_can_be_tested_on_other_groups(cli: CLI, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"{FIT} --data=compas")
    assert "Groups: African-American, Caucasian." in capsys.readouterr().out
    cli(f"{TEST} --data=compas --data.groups=all")
    assert "Hispanic, Native American, Other." in capsys.readouterr().out


def test_lsac_trains(lsac: LSACDataModule, cli: CLI, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"{FIT} --data=lsac --data.seed={lsac.seed}")
    assert "Groups: female, male. Trained without: sex." in capsys.readouterr().out
