"""A finished run that the tests of a file copy, so that it is trained once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fairrf_lightning.cli import main

DATA = ["--data", "synthetic", "--data.n_rows", "600", "--data.batch_size", "60"]
QUICK = [
    "--trainer.max_epochs=3",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which ``fit`` has been run; its best epoch is not the last."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["train.py"])
        main(["fit", *DATA, *QUICK, "--model.lr", "0.03", "--pretrain.epochs", "0"])
    return folder


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of the finished run; return the folder of its checkpoints."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return Path("lightning_logs/version_0/checkpoints")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how often a run was killed and then ended like one that was not."""
    passed = [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
    kills = [value for report in passed for name, value in report.user_properties if name == "kills"]
    if kills:
        terminalreporter.write_line(
            f"{sum(kills)} kills in {len(kills)} runs: each run was resumed and equals an uninterrupted one"
        )
