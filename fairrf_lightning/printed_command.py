"""Commands that the program prints, so that they run as printed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

_NOT_OURS = ("__main__.py", "ipykernel_launcher.py")


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
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - slow for --help

    try:
        origin = json.loads(distribution("fairrf-lightning").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if not origin.get("dir_info", {}).get("editable"):
        return f"pip install 'fairrf-lightning[{extra}]'"
    clone = Path(unquote(urlsplit(origin["url"]).path))
    return f"""pip install -e {quote(f"{'.' if clone == Path.cwd() else clone}[{extra}]")}"""


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
