"""SIGTERM and Ctrl-C: stop where the run can be resumed, and exit with the usual code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_only

from fairrf_lightning.printed_command import shell_command

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_Handler = Callable[[int, FrameType | None], None]
_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class StoppedBySignal(SystemExit):
    """The end of a process that a signal has stopped: 143 for SIGTERM, 130 for Ctrl-C."""

    def __init__(self, number: int, resume: str = "") -> None:
        super().__init__(128 + number)
        self._number = number
        self._resume = resume

    def explain(self) -> None:
        """Print what has stopped the process, and how to resume."""
        name = _NAMES[signal.Signals(self._number)]
        rank_zero_only(_print)(f"\nStopped by {name}; {self._resume or 'nothing was saved by that.'}")


@contextmanager
def exit_by_signal() -> Iterator[None]:
    """Raise :class:`StoppedBySignal` within the block when SIGTERM or Ctrl-C arrives."""
    before = _handle(_stop_now)
    try:
        yield
    finally:
        _put_back(before)


def _handle(handler: _Handler) -> dict[int, Any]:
    """Set the handler of our signals and return the previous ones; Python allows the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in _SIGNALS}


def _put_back(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _stop_now(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise StoppedBySignal(number)


class StopRequest:
    """Notes the first SIGTERM or Ctrl-C, so that training can save and stop after a batch.

    A second signal stops at once.

    Args:
        args: The command line without the program's name, to print the command that resumes.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._args = list(args)
        self._number = 0
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take the place of Lightning's handlers, which end with code 0 or 1."""
        if self._before:
            return
        self._number = 0
        self._before = _handle(self._note)

    def ignore(self) -> None:
        """Put back the handlers that :meth:`listen` found."""
        _put_back(self._before)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            _stop_now(number, frame)
        self._number = number

    def agreed(self, trainer: Trainer) -> bool:
        """Whether a process of the run was asked to stop; the same answer in all of them."""
        if trainer.world_size == 1:
            return self._number > 0
        return bool(trainer.strategy.reduce_boolean_decision(self._number > 0, all=False))

    def stop(self, trainer: Trainer, path: str) -> NoReturn:
        """End the process, with the command that resumes from ``path``."""
        self.ignore()
        # Lightning's launcher takes another code of a process that it started for a crash.
        if trainer.local_rank > 0 and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise SystemExit(0)
        resume = f"step {trainer.global_step} is saved.\nResume with: {resume_command(self._args, path)}"
        raise StoppedBySignal(self._number or signal.SIGTERM, resume)


def resume_command(args: Sequence[str], path: str) -> str:
    """Return the command line of this process, with ``--ckpt_path``.

    >>> command = resume_command(["fit", "--ckpt_path", "old.ckpt", "--data", "adult"], "last.ckpt")
    >>> command.partition(" fit")[2]
    ' --data adult --ckpt_path last.ckpt'
    """
    kept: list[str] = []
    skip = False
    for arg in args:
        if not skip and not arg.startswith("--ckpt_path="):
            kept.append(arg)
        skip = arg == "--ckpt_path"
        if skip:
            kept.pop()
    return shell_command(*kept, "--ckpt_path", path)


def _print(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
