"""SIGTERM and Ctrl-C: the usual exit codes, a checkpoint, and a command that resumes as printed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.reliability.runs import (
    CHECKPOINTS,
    OUTPUT,
    QUIET,
    SMALL,
    TRAIN,
    assert_same_run,
    interrupt,
    run,
    start,
    wait,
)

SLOW_STEPS = Path(__file__).with_name("slow_steps.py")
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("signals") / "whole"
    run(SMALL, folder)
    return folder


def started(args: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a run whose steps are slow, and wait until it trains."""
    process = start([str(SLOW_STEPS), *args, *QUIET], folder)
    while "training" not in (folder / OUTPUT).read_text():
        assert process.poll() is None, (folder / OUTPUT).read_text()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", CODES)
def test_a_signal_saves_and_the_printed_command_resumes(
    number: signal.Signals, whole: Path, tmp_path: Path
) -> None:
    code, printed = interrupt(number, SMALL, tmp_path)
    assert code == CODES[number], printed
    assert "Traceback" not in printed
    assert (tmp_path / CHECKPOINTS / "last.ckpt").is_file()
    command = re.findall("Resume with: (.*)", printed)[-1]
    if number == signal.SIGTERM:  # as printed, in a shell
        environment = os.environ | {"PYTHONPATH": str(TRAIN.parent)}
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)  # noqa: S602
    else:
        program, script, *args = shlex.split(command)
        assert (Path(program).stem.startswith("python"), script) == (True, str(TRAIN))
        run(args, tmp_path)
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
def test_two_processes_stop_together(whole: Path, tmp_path: Path) -> None:
    command = [*SMALL, "--trainer.devices=2"]
    process = started(command, tmp_path)
    process.send_signal(signal.SIGTERM)
    code, printed = wait(process, tmp_path)
    assert code == 143, printed
    run([*command, "--ckpt_path", str(CHECKPOINTS / "last.ckpt")], tmp_path)
    run(command, tmp_path / "whole")
    assert_same_run(tmp_path, tmp_path / "whole")
    assert whole.is_dir()


def test_without_checkpoints_a_signal_still_has_its_code(tmp_path: Path) -> None:
    code, printed = interrupt(signal.SIGTERM, [*SMALL, "--trainer.enable_checkpointing=false"], tmp_path)
    assert code == 143, printed
    assert "Stopped by SIGTERM; nothing was saved." in printed
