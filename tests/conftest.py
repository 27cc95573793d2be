"""Shared by all tests: one thread, and a command line that runs in a folder of its own."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fairrf_lightning.cli import main

# Lightning's own calls into jsonargparse; this package cannot correct them.
os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"
# Two cores: threads of one test only get into the way of the processes of another.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run the command line in an empty folder, quietly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]

    def run(command: str) -> None:
        subcommand, *options = command.split()
        trains = subcommand in ("fit", "validate", "test", "predict")
        main([subcommand, *(quiet if trains else []), *options])

    return run
