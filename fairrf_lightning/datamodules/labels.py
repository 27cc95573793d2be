"""Which of the two values of the target column is the positive one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairrf_lightning.datamodules.table_columns import value_text
from fairrf_lightning.errors import InputError, did_you_mean

_USUAL = ({"0", "1"}, {"-1", "1"}, {"false", "true"})
_MOST_GROUPS = 50


def label_codes(target: str, values: Collection[str], positive: object = None) -> dict[str, int]:
    """Return 0 or 1 for each value of the target, which has to have two.

    >>> label_codes("hired", ["no", "yes"], positive="yes")
    {'no': 0, 'yes': 1}
    """
    found = sorted({plain(value) for value in values})
    shown = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
    if len(found) != 2:
        raise InputError(
            f"target: '{target}' has {len(found)} value(s) ({shown}), but must have two. "
            + ("Make it a column of two values first." if len(found) > 2 else "Add rows of the other class.")
        )
    if positive is None:
        if set(found) not in _USUAL:
            raise InputError(f"positive: say which value of '{target}' is the positive one: {shown}")
        return {value: int(value in ("1", "true")) for value in found}
    chosen = plain(value_text(positive) or "")
    if chosen not in found:
        raise InputError(f"positive: '{target}' has no value '{chosen}'; {did_you_mean(chosen, found)}")
    return {value: int(value == chosen) for value in found}


def plain(text: str) -> str:
    """Return one spelling for equal numbers and truth values, other text as it is.

    >>> plain("1.0"), plain("True"), plain("Yes")
    ('1', 'true', 'Yes')
    """
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return value_text(float(text)) or text
    except (ValueError, OverflowError):
        return text


def labels(target: str, column: pd.Categorical, codes: Mapping[str, int]) -> NDArray[np.float32]:
    """Return 0 or 1 for each row, NaN where the label is missing."""
    values = [plain(str(value)) for value in column.categories]
    if unknown := [value for value in values if value not in codes]:
        raise InputError(
            f"target: '{target}' has the value '{unknown[0]}', but the model knows {', '.join(codes)} only"
        )
    lookup: NDArray[np.float32] = np.array([*(codes[value] for value in values), np.nan], dtype=np.float32)
    return lookup.take(column.codes, mode="wrap")  # code -1, no label, takes the last entry


def check_group_names(sensitive: str, names: Collection[str], *, chosen: bool = False) -> None:
    """Refuse a column of S whose values, unless some are ``chosen``, cannot be groups to compare."""
    if len(names) < 2:
        found = f"has one value only ({', '.join(names)})" if names else "has no value"
        raise InputError(
            f"sensitive: '{sensitive}' {found}; a gap compares groups. "
            "Leave the option out and name the column in drop, so that it is no input."
        )
    if len(names) > _MOST_GROUPS and not chosen:
        raise InputError(
            f"sensitive: '{sensitive}' has {len(names):,} values; gaps compare up to {_MOST_GROUPS} groups. "
            "Choose some by groups, or make a column of a few groups from it, such as age bands."
        )
