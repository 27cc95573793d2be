"""CSV files that a spreadsheet program opens as text and numbers, never as formulas.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is a formula to Excel and
LibreOffice, and a formula can start programs. Names of groups and columns come from the user's data, so any
of them may be one. Such a cell gets an apostrophe in front: ``=1+1`` is written as ``'=1+1``. Numbers such
as ``-0.5`` stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from fairrf_lightning.files import replacing

# The wide forms of the signs are formulas to East Asian versions.
_WIDE = (
    "\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
_FORMULA_STARTS = tuple(f"=+-@\t\r\n{_WIDE}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table whose names and cells may come from data, whole or not at all.

    Args:
        frame: The table; its index is not written.
        path: The file to write. Its folder must exist.
    """
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
