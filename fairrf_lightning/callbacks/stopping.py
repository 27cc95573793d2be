"""SIGTERM and Ctrl-C: a run saves after the batch, exits with the usual code and says how to resume."""

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

from fairrf_lightning.messages import shell_command

_SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
_Handler = Callable[[int, FrameType | None], None]


class StoppedBySignal(SystemExit):
    """Ends a process that was stopped by a signal: exit code 143 for SIGTERM, 130 for Ctrl-C."""

    def __init__(self, number: int, resume: str = "") -> None:
        super().__init__(128 + number)
        self._number = number
        self._resume = resume

    def explain(self) -> None:
        """Print the signal and the command that resumes."""
        name = _SIGNALS[signal.Signals(self._number)]
        rank_zero_only(_print)(f"\nStopped by {name}; {self._resume or 'nothing was saved.'}")


@contextmanager
def exit_by_signal() -> Iterator[None]:
    """Raise :class:`StoppedBySignal` within the block when SIGTERM or Ctrl-C arrives."""
    before = _handle(_stop_now)
    try:
        yield
    finally:
        _put_back(before)


def _handle(handler: _Handler) -> dict[int, Any]:
    """Set the handler of our signals and return the previous ones; only the main thread can set them."""
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
    """Records the first SIGTERM or Ctrl-C, so that training can save and stop after a batch.

    A second signal stops at once.

    Args:
        args: The command line without the program's name, to print the command that resumes.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._args = list(args)
        self._number = 0
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Replace Lightning's handlers, which exit with code 0 or 1."""
        if not self._before:
            self._number = 0
            self._before = _handle(self._note)

    def ignore(self) -> None:
        """Restore the handlers that :meth:`listen` replaced."""
        _put_back(self._before)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            _stop_now(number, frame)
        self._number = number

    def agreed(self, trainer: Trainer) -> bool:
        """Return whether any process of the run was asked to stop; all processes agree."""
        if trainer.world_size == 1:
            return self._number > 0
        return bool(trainer.strategy.reduce_boolean_decision(self._number > 0, all=False))

    def stop(self, trainer: Trainer, path: str) -> NoReturn:
        """Exit and print the command that resumes from ``path``."""
        self.ignore()
        # Lightning's launcher treats any other code of a process that it started as a crash.
        if trainer.local_rank > 0 and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise SystemExit(0)
        resume = f"step {trainer.global_step} is saved.\nResume with: {resume_command(self._args, path)}"
        raise StoppedBySignal(self._number or signal.SIGTERM, resume)


def resume_command(args: Sequence[str], path: str) -> str:
    """Return the command that resumes: the arguments of this process with ``--ckpt_path``.

    >>> command = resume_command(["fit", "--ckpt_path", "old.ckpt", "--data", "adult"], "last.ckpt")
    >>> command.partition(" fit")[2]
    ' --data adult --ckpt_path last.ckpt'
    """
    pairs = zip(args, ["", *args], strict=False)
    kept = [arg for arg, before in pairs if "--ckpt_path" not in (arg.partition("=")[0], before)]
    return shell_command(*kept, "--ckpt_path", path)


def _print(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
