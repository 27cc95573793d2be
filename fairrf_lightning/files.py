"""Writers of files: whole or not at all, and CSV files without formulas; addresses in place of paths.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is a formula to Excel and
LibreOffice, and a formula can start programs. Names of groups and columns come from the user's data, so any
of them may be one. Such a cell gets an apostrophe in front: ``=1+1`` is written as ``'=1+1``. Numbers such
as ``-0.5`` stay as they are.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

# The wide forms of the signs are formulas to East Asian versions.
_WIDE = (
    "\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
_FORMULA_STARTS = tuple(f"=+-@\t\r\n{_WIDE}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def is_address(path: str) -> bool:
    """Return whether a path is an address of remote storage, such as ``s3://bucket/people``."""
    return "://" in path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` and rename it to ``path`` if the block succeeds.

    The temporary file is synced to disk before the rename, so that a crash leaves either the previous
    file or the new one. If the block raises, the previous file stays and the temporary one is deleted.

    Args:
        path: The file to write. Its folder must exist.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(target) as unfinished:
    ...     _ = unfinished.write_text("all of it")
    >>> target.read_text()
    'all of it'
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        # mkstemp makes files private; a written file has the permissions that open() would give.
        unfinished.chmod(0o666 & ~_umask())
        yield unfinished
        _sync(unfinished, os.O_RDWR)  # Windows syncs no file that is open for reading only
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system can sync a folder
        _sync(path.parent, os.O_RDONLY)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table whose names and cells may come from data, whole or not at all."""
    with replacing(path) as unfinished:
        without_formulas(frame).to_csv(unfinished, index=False)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an apostrophe in front of each cell and column name that is a formula.

    >>> print(without_formulas(pd.DataFrame({"=a": ["-0.5", "-1+1", -2]})).to_csv(index=False).split())
    ["'=a", '-0.5', "'-1+1", '-2']
    """
    # Only texts: a number that passes through Python has other digits (float32) and takes long.
    named = frame.rename(columns=without_formula)
    for place, dtype in enumerate(named.dtypes):
        if not is_numeric_dtype(dtype):
            named.isetitem(place, named.iloc[:, place].map(without_formula).array)
    return named


def without_formula(value: Any) -> Any:
    """Return a value as it is, or with an apostrophe in front if it is a formula to a spreadsheet program."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
