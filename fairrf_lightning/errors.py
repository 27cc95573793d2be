"""The error for invalid input, its checks, and the hint at the nearest known name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_MAX_CHOICES = 40


class InputError(ValueError):
    """Invalid input.

    The message names the value, what was expected and what to do. The command line prints it without a
    traceback and exits with code 2.
    """


class DivergedError(InputError):
    """Numbers that are not finite, because training has diverged."""


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
    """Return the nearest choices as a question, then the choices; it follows a semicolon.

    >>> did_you_mean("adlt", ["adult", "compas"])
    "did you mean 'adult'? Choices: adult, compas"
    >>> did_you_mean("x", ["adult", "compas"])
    'choices: adult, compas'
    >>> did_you_mean("x", [f"native-country={i}" for i in range(90)]).endswith("country=39 and 50 more")
    True
    """
    choices = list(choices)
    near = nearest(name, choices)
    listed = ", ".join(choices[:_MAX_CHOICES])
    if len(choices) > _MAX_CHOICES:
        listed += f" and {len(choices) - _MAX_CHOICES} more"
    return f"{near}Choices: {listed}" if near else f"choices: {listed}"


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the nearest choices as a question with a space behind it, or an empty text."""
    near = get_close_matches(name, list(choices), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise :class:`InputError` unless the value of an option is one of its choices."""
    choices = list(choices)
    if value not in choices:
        near = get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"{name} = {value!r}: expected one of {', '.join(map(repr, choices))}{hint}")


def check_at_least(minimum: float, **options: float | None) -> None:
    """Raise :class:`InputError` if an option is below ``minimum`` or NaN; ``None`` is an option not given."""
    for name, value in options.items():
        if value is not None and not value >= minimum:
            raise InputError(f"{name} = {value}: expected {minimum} or more.")


def check_writable(folder: Path) -> None:
    """Raise the OSError that creating and filling a folder would raise, without creating it."""
    whole = folder.absolute()
    nearest = next(path for path in (whole, *whole.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def writing_to(path: str | Path, advice: str = "name another folder by --out") -> Iterator[None]:
    """Turn an OSError into an InputError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written to ({error.strerror}); {advice}.") from error


@contextmanager
def writing_file(option: str, path: Path) -> Iterator[None]:
    """Make the folder of a file, and turn an OSError into an InputError that names the option."""
    with writing_to(f"{option} {path}", "name a file in another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield


def check_output(option: str, path: Path, example: str) -> None:
    """Raise before the work unless the file of an option can be written; ``example`` is a name for it."""
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder; name a file in it, such as {example}.")
    with writing_to(f"{option} {path}", "name a file in another folder"):
        check_writable(path.parent)


def first_line(error: BaseException) -> str:
    """Return the first line of the message of another library's error, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
