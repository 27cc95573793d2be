"""Find inputs that are the sensitive attribute under another name."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pandas.api.types import is_numeric_dtype

from fairrf_lightning.errors import InputError

_Codes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
SUSPICIOUS = 0.95
_FEWEST_ROWS = 20  # with fewer, a column of two values matches S by chance too easily


def check_stand_ins(inputs: pd.DataFrame, sensitive: pd.Series[Any]) -> None:
    """Refuse a column that recodes S one to one, and warn of one that all but does.

    Nothing is said of fewer than 20 rows with a known S, or of a single group.

    Args:
        inputs: Columns that the model is to see, of validation and test rows, where S is legal.
        sensitive: S of the same rows, missing where it is not known.

    Raises:
        InputError: If a column is a copy or a one-to-one recoding of S.
    """
    known = sensitive.notna().to_numpy()
    hidden = sensitive[known]
    if len(hidden) < _FEWEST_ROWS or hidden.nunique() < 2:
        few = f"{len(hidden)} rows with a known '{sensitive.name}'"
        rank_zero_info(f"Data: {few} are too few to search the inputs for copies of it.")
        return
    for name in inputs.columns:
        column = inputs.loc[known, name]
        if is_recoding(column, hidden):
            raise InputError(
                f"column '{name}' is the sensitive attribute '{sensitive.name}' in other words: on all "
                f"{len(hidden):,} held-out rows where it is known, each value of one stands for one "
                f"value of the other. Take '{name}' out of the data (in a table of your own name it in "
                "drop), or set include_sensitive to true if the model is meant to see "
                f"'{sensitive.name}'."
            )
        if (strength := association(column, hidden)) > SUSPICIOUS:
            rank_zero_warn(
                f"column '{name}' all but tells the sensitive attribute '{sensitive.name}' (association "
                f"{strength:.3f} on the held-out rows), and the model sees it. Take '{name}' out of the "
                "data (in a table of your own name it in drop), or name it in related, so that the penalty "
                "acts on it."
            )


def is_recoding(column: pd.Series[Any], other: pd.Series[Any]) -> bool:
    """Tell whether each value of one column, missing included, stands for one value of the other.

    >>> is_recoding(pd.Series([1, 2, 1]), pd.Series(["f", "m", "f"]))
    True
    """
    codes, other_codes = _codes(column), _codes(other)
    pairs = len(np.unique(_pair_codes(codes, other_codes)))
    return bool(pairs == codes.max() + 1 == other_codes.max() + 1)


def association(column: pd.Series[Any], sensitive: pd.Series[Any]) -> float:
    """Return how well a column tells S, from 0 to 1.

    This is Cramer's V, corrected for its bias (Bergsma 2013: a column of names, each one once, tells
    nothing). For numbers it is the larger of that and the correlation ratio, which for two groups is
    the absolute correlation.
    """
    strength = _cramers_v(_codes(column), _codes(sensitive))
    if is_numeric_dtype(column):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        finite = np.isfinite(numbers)
        strength = max(strength, _correlation_ratio(numbers[finite], sensitive[finite]))
    return strength


def _codes(column: pd.Series[Any]) -> _Codes:
    codes: _Codes = pd.factorize(column, use_na_sentinel=False)[0]
    return codes


def _pair_codes(codes: _Codes, other: _Codes) -> _Codes:
    pairs: _Codes = codes * (other.max() + 1) + other
    return pairs


def _cramers_v(codes: _Codes, other: _Codes) -> float:
    pairs, counts = np.unique(_pair_codes(codes, other), return_counts=True)
    rows, columns = np.bincount(codes), np.bincount(other)
    expected = rows[pairs // len(columns)] * columns[pairs % len(columns)]
    total, levels = len(codes), np.array([len(rows), len(columns)])
    shrunk = (levels - (levels - 1) ** 2 / (total - 1)).min() - 1
    if shrunk <= 0:
        return 0.0
    phi_squared = (counts**2 / expected).sum() - 1 - np.prod(levels - 1) / (total - 1)
    return float(np.sqrt(max(phi_squared, 0.0) / shrunk))


def _correlation_ratio(numbers: np.ndarray[Any, Any], groups: pd.Series[Any]) -> float:
    if not len(numbers) or np.ptp(numbers) == 0:
        return 0.0
    scaled = pd.Series(numbers / np.abs(numbers).max())  # squares of huge numbers are infinite
    means = scaled.groupby(groups.to_numpy()).transform("mean")
    return float(np.sqrt(means.var(ddof=0) / scaled.var(ddof=0)))
