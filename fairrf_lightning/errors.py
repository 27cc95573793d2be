"""The error that bad input raises, and its hint at the nearest known name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """What the user gave cannot be used.

    The message names the value, what was expected and what to do; the command line prints it
    without a traceback and exits with code 2.
    """


class DivergedError(InputError):
    """Training has run into numbers that are not finite."""


def diverged(found: str) -> DivergedError:
    """Return the error for a model whose predictions are not finite.

    >>> str(diverged("val_loss is nan")).partition(". ")[0]
    'val_loss is nan: the predictions are not finite, because the model has diverged'
    """
    return DivergedError(
        f"{found}: the predictions are not finite, because the model has diverged. "
        "Train again with a lower learning rate (--model.lr) or --trainer.gradient_clip_val 1."
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return the nearest choices as a question, then all of them.

    >>> did_you_mean("adlt", ["adult", "compas"])
    "did you mean 'adult'? Choices: adult, compas"
    """
    choices = list(choices)
    near = get_close_matches(name, choices, n=2, cutoff=0.5)
    question = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{question}Choices: {', '.join(choices)}"


def check_writable(folder: Path) -> None:
    """Raise the error that making and filling a folder would end with, without making it."""
    whole = folder.absolute()
    nearest = next(path for path in (whole, *whole.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def writing_to(path: str | Path, advice: str = "name another folder by --out") -> Iterator[None]:
    """Say in one line that a folder or file cannot be written to, and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written to ({error.strerror}); {advice}.") from error
