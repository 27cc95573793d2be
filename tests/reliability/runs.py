"""Runs of the command line in processes of their own: killed, resumed, and compared bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.checkpoints import load_checkpoint

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
# 12 batches in an epoch; lambda is updated within epochs, and dropout draws random numbers.
_SMALL = (
    "fit --data synthetic --data.n_rows 1200 --data.batch_size 50 --trainer.max_epochs 4 "
    "--lambda_update.every_n_steps 5 --pretrain.epochs 1 --trainer.accelerator cpu"
)
SMALL = _SMALL.split()
OUTPUT = "output.txt"
CHECKPOINTS = Path("lightning_logs/version_0/checkpoints")
_PATHS = ("dirpath", "best_model_path", "last_model_path", "kth_best_model_path", "best_k_models")


def start(command: list[str], folder: Path, **env: str) -> subprocess.Popen[bytes]:
    """Start Python with a command in a folder and in a process group of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAIN.parent)} | env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """Wait for a process and end what it left behind; return its exit code and all that it printed."""
    try:
        code = process.wait(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return code, (folder / OUTPUT).read_text("utf-8")


def run(args: list[str], folder: Path, **env: str) -> str:
    """Run the command line to its end; return what it printed."""
    code, printed = _answer("", args, folder, env)
    assert code == 0, printed
    return printed


def kill(moment: str, args: list[str], folder: Path, **env: str) -> None:
    """Run the command line until it is killed at a moment of ``killed_run.py``."""
    code, printed = _answer(moment, args, folder, env)
    assert code == -signal.SIGKILL, f"{moment}: {code}\n{printed}"


@cache
def _zygote() -> subprocess.Popen[str]:
    """Return the process that forks a process for each run; the imports would take most of the time."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        cwd=TRAIN.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAIN.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _answer(moment: str, args: list[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / OUTPUT
    request = {"moment": moment, "args": [*args, *QUIET], "folder": str(folder), "output": str(output)}
    zygote = _zygote()
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(json.dumps(request | {"env": dict(env)}) + "\n")
    zygote.stdin.flush()
    code = int(zygote.stdout.readline())
    return code, output.read_text("utf-8")


def resume(args: list[str], folder: Path, **env: str) -> str:
    """Resume the documented way: the same command with ``--ckpt_path``; without a checkpoint, again."""
    return run(resume_args(args, folder), folder, **env)


def resume_args(args: list[str], folder: Path) -> list[str]:
    """Return the documented command line that resumes."""
    last = CHECKPOINTS / "last.ckpt"
    return [*args, "--ckpt_path", str(last)] if (folder / last).is_file() else args


def assert_same_run(folder: Path, whole: Path) -> None:
    """Assert that a run ended in the state of an uninterrupted one, bit by bit."""
    found, wanted = _finished(folder), _finished(whole)
    names = sorted(path.name for path in found.iterdir())
    assert names == sorted(path.name for path in wanted.iterdir()) == ["best.ckpt", "last.ckpt"]
    for name in names:
        differences = list(differ(load_checkpoint(found / name), load_checkpoint(wanted / name)))
        assert not differences, (name, differences)
    assert_same_metrics(folder, whole)


def _finished(folder: Path) -> Path:
    """Return the folder of the checkpoints: version_1 if the first attempt was killed before it saved."""
    (found,) = (path.parent for path in folder.glob("lightning_logs/*/checkpoints/last.ckpt"))
    return found


def assert_same_metrics(folder: Path, whole: Path) -> None:
    """Assert that the metrics which the last process logged are those of the uninterrupted run."""
    newest = max(folder.glob("lightning_logs/*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    found = pd.read_csv(newest, dtype=str)
    wanted = pd.read_csv(whole / "lightning_logs/version_0/metrics.csv", dtype=str)
    assert "test_acc" in found
    keys = [name for name in ("test_acc", "val_acc", "train_loss") if name in found]
    for key in keys:
        rows, expected = (
            table.dropna(subset=[key]).set_index(["epoch", "step"]) for table in (found, wanted)
        )
        pd.testing.assert_frame_equal(rows, expected.loc[rows.index, rows.columns])


def differ(found: Any, wanted: Any, place: str = "") -> Iterator[str]:
    """Yield the places where two checkpoints differ, but for the folder they are in."""
    if isinstance(wanted, Mapping):
        if found.keys() != wanted.keys():
            yield f"{place}: {sorted(set(found) ^ set(wanted))}"
            return
        for key in wanted:
            if key not in _PATHS:
                yield from differ(found[key], wanted[key], f"{place}/{key}")
        if "best_k_models" in wanted:
            yield from differ(
                list(found["best_k_models"].values()), list(wanted["best_k_models"].values()), f"{place}/best"
            )
    elif isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            yield f"{place}: {len(found)} and {len(wanted)} items"
        for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
            yield from differ(one, other, f"{place}/{number}")
    elif isinstance(wanted, Tensor):
        same = found.dtype == wanted.dtype and found.shape == wanted.shape
        if not same or found.numpy().tobytes() != wanted.numpy().tobytes():
            yield place
    elif repr(found) != repr(wanted):  # NaN differs from itself
        yield f"{place}: {found} and {wanted}"


def weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint."""
    found: dict[str, Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return found
