"""Run the command line and kill this process, by SIGKILL, at a chosen moment.

``python killed_run.py MOMENT fit --data ...``, where MOMENT is ``STAGE:NUMBER``: the stage of the
NUMBER-th checkpoint write of this process, or ``batch:NUMBER``, ``seconds:NUMBER`` after the first batch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from fairrf_lightning import files
from fairrf_lightning.callbacks.checkpointing import BestCheckpoint
from fairrf_lightning.cli import main

STAGES = ("start", "half", "written", "synced", "renamed")


def kill() -> NoReturn:
    """End this process as a power cut would: without a chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def kill_in_write(stage: str, number: int) -> None:
    """Arrange for the end at a stage of the ``number``-th file that is written whole."""
    count = 0
    write, sync, rename = Path.write_bytes, files._sync, Path.replace

    def is_now(path: Path, when: str) -> bool:
        return ".ckpt." in path.name and stage == when and count == number

    def write_bytes(self: Path, data: Any) -> int:
        nonlocal count
        count += ".ckpt." in self.name
        if is_now(self, "start"):
            kill()
        if is_now(self, "half"):
            write(self, bytes(data)[: len(data) // 2])
            kill()
        written = write(self, data)
        if is_now(self, "written"):
            kill()
        return written

    def synced(path: Path, flags: int) -> None:
        sync(path, flags)
        if is_now(path, "synced"):
            kill()

    def renamed(self: Path, target: Any) -> Path:
        done = rename(self, target)
        if is_now(self, "renamed"):
            kill()
        return done

    Path.write_bytes = write_bytes  # type: ignore[method-assign]
    Path.replace = renamed  # type: ignore[method-assign, assignment]
    files._sync = synced


def kill_in_training(act: Callable[[int], None]) -> None:
    """Call ``act`` with the number of each batch of this process, before its checkpoint is written."""
    count = 0
    before = BestCheckpoint.on_train_batch_end

    def on_train_batch_end(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        act(count)
        before(self, *args, **kwargs)

    BestCheckpoint.on_train_batch_end = on_train_batch_end  # type: ignore[method-assign]


def arrange(moment: str) -> None:
    """Arrange for the end at a moment."""
    kind, _, number = moment.partition(":")
    if kind in STAGES:
        kill_in_write(kind, int(number))
    elif kind == "batch":
        kill_in_training(lambda count: kill() if count == int(number) else None)
    else:
        timer = threading.Timer(float(number), kill)
        timer.daemon = True
        kill_in_training(lambda count: timer.start() if count == 1 else time.sleep(0.01))


if __name__ == "__main__":
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        arrange(sys.argv[1])
    del sys.argv[1]
    main()
