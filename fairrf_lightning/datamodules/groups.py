"""Codes of the label, 0 and 1, and ids of the groups of S."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.datamodules.columns import value_text
from fairrf_lightning.errors import InputError, did_you_mean

Groups = list[str] | Literal["all"]
_LABELS_WITHOUT_POSITIVE = ({"0", "1"}, {"-1", "1"}, {"false", "true"})
_MAX_GROUPS = 50


def check_groups(groups: Sequence[str] | Literal["all"]) -> None:
    """Raise if a choice of groups leaves nothing to compare."""
    if groups == "all":
        return
    if isinstance(groups, str) or len(set(groups)) < max(2, len(groups)):
        raise InputError(f"groups must be 'all', or two or more different groups of S, not {groups}")


def check_group_names(sensitive: str, names: Collection[str], *, chosen: bool = False) -> None:
    """Raise if the values of S cannot be groups to compare; too many are fine if some are ``chosen``."""
    if len(names) < 2:
        found = f"has one value only ({', '.join(names)})" if names else "has no value"
        raise InputError(
            f"sensitive: '{sensitive}' {found}; a gap compares groups. "
            "Leave the option out and name the column in drop, so that it is no input."
        )
    if len(names) > _MAX_GROUPS and not chosen:
        raise InputError(
            f"sensitive: '{sensitive}' has {len(names):,} values; gaps compare up to {_MAX_GROUPS} groups. "
            "Choose some by groups, or make a column of a few groups from it, such as age bands."
        )


def group_ids(sensitive: pd.Series[Any], groups: Sequence[str] | Literal["all"]) -> tuple[Tensor, list[str]]:
    """Number the groups of S that are compared.

    Args:
        sensitive: S of each row, missing where it is not known.
        groups: Names of the groups, or ``"all"``.

    Returns:
        The id of each row, -1 where S is not known or its group not compared, and the groups' names
        in the order of their ids, sorted.

    >>> group_ids(pd.Series(["c", "a", None, "b"]), ["a", "c"])
    (tensor([ 1,  0, -1, -1]), ['a', 'c'])
    """
    codes, found = pd.factorize(sensitive, sort=True)
    names = [str(name) for name in found]
    for name in () if groups == "all" else groups:
        if name not in names:
            raise InputError(
                f"groups: there is no '{name}' in '{sensitive.name}'; {did_you_mean(name, names)}"
            )
    compared = [name for name in names if groups == "all" or name in groups]
    # The last entry is for code -1, by which pandas marks a missing value.
    lookup = torch.tensor([*(compared.index(name) if name in compared else -1 for name in names), -1])
    return lookup[torch.tensor(codes, dtype=torch.int64)], compared


def label_codes(target: str, values: Collection[str], positive: object = None) -> dict[str, int]:
    """Return 0 or 1 for each of the two values of the target.

    >>> label_codes("hired", ["no", "yes"], positive="yes")
    {'no': 0, 'yes': 1}
    """
    found = sorted({normalise_label(value) for value in values})
    shown = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
    if len(found) != 2:
        raise InputError(
            f"target: '{target}' has {len(found)} value(s) ({shown}), but must have two. "
            + ("Make it a column of two values first." if len(found) > 2 else "Add rows of the other class.")
        )
    if positive is None:
        if set(found) not in _LABELS_WITHOUT_POSITIVE:
            raise InputError(f"positive: say which value of '{target}' is the positive one: {shown}")
        return {value: int(value in ("1", "true")) for value in found}
    chosen = normalise_label(value_text(positive) or "")
    if chosen not in found:
        raise InputError(f"positive: '{target}' has no value '{chosen}'; {did_you_mean(chosen, found)}")
    return {value: int(value == chosen) for value in found}


def normalise_label(text: str) -> str:
    """Return one spelling for equal numbers and truth values, other text as it is.

    >>> normalise_label("1.0"), normalise_label("True"), normalise_label("Yes")
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
    values = [normalise_label(str(value)) for value in column.categories]
    if unknown := [value for value in values if value not in codes]:
        raise InputError(
            f"target: '{target}' has the value '{unknown[0]}', but the model knows {', '.join(codes)} only"
        )
    lookup: NDArray[np.float32] = np.array([*(codes[value] for value in values), np.nan], dtype=np.float32)
    return lookup.take(column.codes, mode="wrap")  # code -1, no label, takes the last entry
