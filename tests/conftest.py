"""Shared by all tests: one thread, and a command line that runs in a folder of its own."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from fairrf_lightning.cli import main

# Lightning's own calls into jsonargparse; this package cannot correct them.
os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"
# Two cores: threads of one test only get into the way of the processes of another.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
# As in an activated environment: printed commands then begin with `python`.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

Cli: TypeAlias = Callable[[str], None]
Printed: TypeAlias = Callable[[str], str]
Refused: TypeAlias = Callable[[str | Sequence[str]], str]


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Start each test with the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command line in an empty folder, quietly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]

    def run(command: str) -> None:
        subcommand, *options = command.split()
        trains = subcommand in ("fit", "validate", "test", "predict")
        main([subcommand, *(quiet if trains else []), *options])

    return run


@pytest.fixture
def printed(cli: Cli, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run a command that succeeds, and return what it printed."""

    def run(command: str) -> str:
        capsys.readouterr()
        try:
            cli(command)
        except SystemExit as end:  # as of --help
            assert not end.code  # noqa: PT017 - other codes are errors
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(cli: Cli, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must end with exit code 2 and an error of one to three lines; return the error."""

    def run(command: str | Sequence[str]) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli(command) if isinstance(command, str) else main(list(command))
        assert caught.value.code == 2
        printed = capsys.readouterr().err
        message = printed[printed.index("error: ") :]
        assert 1 <= message.count("\n") <= 3
        assert "Traceback" not in printed
        return message

    return run
