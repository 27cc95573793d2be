"""Text for the user: numbers and lists in sentences, commands that run as printed, a quiet Lightning."""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

DASH = "\N{EN DASH}"
_REPORT_PACKAGES = ("jinja2", "matplotlib")
_NOT_OURS = ("__main__.py", "ipykernel_launcher.py")


def percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.8523)
    '85.2 %'
    """
    return DASH if math.isnan(value) else f"{100 * value:.{digits}f} %"


def level_text(level: float) -> str:
    """Return a confidence level as a percentage.

    >>> level_text(0.95), level_text(0.975)
    ('95 %', '97.5 %')
    """
    return f"{100 * level:g} %"


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """Return a difference of shares in percentage points.

    >>> points(0.0154, signed=True)
    '+1.5 points'
    """
    return DASH if math.isnan(value) else f"{number_text(100 * value, digits, signed=signed)} points"


def listing(names: Iterable[str]) -> str:
    """Return names as part of a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def first_upper(text: str) -> str:
    """Return a sentence with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number_text(value: float, digits: int, *, signed: bool = False) -> str:
    """Return a number with a minus sign, and zero without a sign.

    >>> number_text(-0.004, 2)
    '0.00'
    """
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")  # no negative zero
    return text.replace("-", "\N{MINUS SIGN}")


def shell_command(*args: str | Path) -> str:
    """Return a command of this program with its arguments quoted for a shell.

    The program is named as it was called; from a notebook or a test it is ``python train.py``.

    >>> shell_command("report", "my run").endswith(" report 'my run'")
    True
    """
    return " ".join([*_program(), *(quote(str(arg)) for arg in args)])


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for the way in which this package was installed.

    >>> "[report]" in install_command("report")
    True
    """
    from importlib.metadata import distributions  # noqa: PLC0415 - slow for --help

    # A clone on sys.path has metadata of its own, without the origin; those of the environment have it.
    found = (one.read_text("direct_url.json") for one in distributions(name="fairrf-lightning"))
    origin = json.loads(next(filter(None, found), "{}"))
    if not origin.get("dir_info", {}).get("editable"):
        return f"pip install 'fairrf-lightning[{extra}]'"
    clone = Path(unquote(urlsplit(origin["url"]).path))
    return f"""pip install -e {quote(f"{'.' if clone == Path.cwd() else clone}[{extra}]")}"""


def missing_packages() -> str:
    """Return the packages of the extra ``report`` that are not installed."""
    return ", ".join(name for name in _REPORT_PACKAGES if find_spec(name) is None)


def _program() -> list[str]:
    script = sys.argv[0]
    name = Path(script).name
    if name.endswith(".py") and name not in _NOT_OURS:
        return [_interpreter(), quote(script)]
    return [_shortest(script)] if name == "fairrf" else ["python", "train.py"]


def _interpreter() -> str:
    # The folder is compared, not the file: the Python of a virtual environment links to that of the system.
    found = shutil.which("python")
    same = found is not None and Path(found).parent == Path(sys.executable).parent
    return "python" if same else _shortest(sys.executable)


def _shortest(program: str) -> str:
    """Return the name of a program if the shell finds it by its name, else its path."""
    found = shutil.which(Path(program).name)
    same = found is not None and Path(found).absolute() == Path(program).absolute()
    return Path(program).name if same else quote(program)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Let Lightning log warnings only, without its lines on GPUs, seeds and tips."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
