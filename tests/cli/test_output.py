"""What a run prints at 80 columns, in a pipe and in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairrf_lightning.cli import output

ROOT = Path(__file__).resolve().parents[2]
FIT = "fit --data synthetic --data.n_rows 600 --trainer.max_epochs 2"
UNWANTED = ("💡", "litlogger", "v_num", "FLOPs", "_make_backbone", "GPU available", "LeafSpec", "Traceback")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what a terminal of 80 columns gets."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "train.py"), *FIT.split()]
    folder = tmp_path_factory.mktemp("terminal")
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0, output.decode()[-2000:]
    return output.decode()


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), *FIT.split()]
    folder = tmp_path_factory.mktemp("pipe")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)


def test_a_terminal_shows_one_progress_line(terminal: str) -> None:
    assert not [part for part in UNWANTED if part in terminal]
    assert "epoch 1/2" in terminal
    bars = [line for line in re.split(r"[\r\n]", terminal) if "━━━" in line and "epoch" in line]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in bars]
    assert max(map(len, plain)) <= 80
    assert terminal.count("Trained 2 epochs") == 1


@pytest.mark.parametrize(("number", "expected"), [(0, "0 epochs"), (1, "1 epoch"), (2, "2 epochs")])
def test_one_epoch_is_singular(number: int, expected: str) -> None:
    assert output._epochs(number) == expected


@pytest.mark.parametrize(("limit", "expected"), [(1.0, ", 180 rows"), (0.5, ""), (1, ""), (3, "")])
def test_rows_are_named_only_if_all_were_tested(limit: float, expected: str) -> None:
    trainer: Any = SimpleNamespace(
        datamodule=SimpleNamespace(split_sizes={"test": 180}), limit_test_batches=limit
    )
    assert output._rows_of(trainer, "test") == expected


def test_a_pipe_gets_sizes_results_and_the_next_commands(piped: subprocess.CompletedProcess[str]) -> None:
    lines = piped.stdout.splitlines()
    assert lines[0] == "Data: 300 training, 120 validation and 180 test rows; 6 inputs."
    assert re.fullmatch(r"Model: MLP with [\d,]+ parameters\.", lines[1])
    assert re.match(r"Trained 2 epochs in 0\d:\d\d\. val: loss [\d.]+ acc", lines[2])
    assert lines[3].strip() == "Test split, 180 rows"
    following = lines[lines.index("Next:") + 1 :]
    assert [re.search(r"train\.py (\w+)", line)[1] for line in following] == ["report", "audit", "predict"]  # type: ignore[index]
    assert re.fullmatch(r"\|covariance\| with the prediction, epoch 1 -> 2: height .*\n", piped.stderr)
    assert not [part for part in UNWANTED if part in piped.stdout]
