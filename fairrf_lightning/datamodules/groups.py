"""The groups of S that the gaps compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, did_you_mean

Groups = list[str] | Literal["all"]


def check_groups(groups: Sequence[str] | Literal["all"]) -> None:
    """Refuse a choice of groups that leaves nothing to compare."""
    if groups == "all":
        return
    if isinstance(groups, str) or len(set(groups)) < max(2, len(groups)):
        raise InputError(f"groups must be 'all', or two or more different groups of S, not {groups}")


def group_ids(sensitive: pd.Series[Any], groups: Sequence[str] | Literal["all"]) -> tuple[Tensor, list[str]]:
    """Number the groups of S that are to be compared.

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
    # The last entry serves code -1, by which pandas marks a missing value.
    lookup = torch.tensor([*(compared.index(name) if name in compared else -1 for name in names), -1])
    return lookup[torch.tensor(codes, dtype=torch.int64)], compared
