"""How much a column, of numbers or of categories, tells of another one: one measure for both.

The measure is the root of the share of the other column's variation that is explained linearly, where the
variation of categories is that of their 0/1 columns. Between a number and two groups it is the absolute
correlation, between categories and two groups Cramer's V; with more groups large ones count for more. Chance
alone explains a little, so its expectation is taken off, as Bergsma (2013) does for Cramer's V.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from fairrf_lightning.errors import InputError
from fairrf_lightning.suggest.limits import chi_square_cdf, effect_limits

_DRAWS = 1000
MAX_ROWS = 2000  # of which the measure is taken; enough for two digits
_MOST_CATEGORIES = 30

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Association:
    """How much a column tells of S or of the label, from 0 to 1.

    Args:
        value: The measure, chance taken off.
        low: Lower limit of its 95 % interval; above 0 exactly if the p value, not corrected, is below 0.05.
        high: Upper limit.
        p_value: Probability of as much in shuffled rows (chi-square with their moments), corrected for the
            number of columns (Holm).
    """

    value: float
    low: float
    high: float
    p_value: float


def associations(
    columns: Mapping[str, pd.Series[Any]], other: pd.Series[Any], seed: int = 0
) -> dict[str, Association]:
    """Measure each column against another one, on the rows where that is known.

    Args:
        columns: Columns of numbers or categories, missing values allowed.
        other: S or the label.
        seed: Seed of the shuffles, and of the rows if there are many.
    """
    rng = np.random.default_rng(seed)
    known = np.flatnonzero(other.notna().to_numpy())
    if len(known) > MAX_ROWS:
        known = np.sort(rng.choice(known, MAX_ROWS, replace=False))
    groups = _indicators(other.iloc[known])
    if groups.shape[1] < 2:
        raise InputError(
            f"'{other.name}' has a single value in {len(known):,} rows: nothing can tell it apart."
        )
    size = len(known)
    shuffles = np.array([rng.permutation(size) for _ in range(_DRAWS)])
    shuffled = np.stack([column[shuffles] for column in groups.T])
    found = {name: _measure(design(column.iloc[known]), groups, shuffled) for name, column in columns.items()}
    return _holm(found)


def joint_association(columns: Mapping[str, pd.Series[Any]], other: pd.Series[Any]) -> float:
    """Return how much the columns tell of another one together."""
    known = other.notna().to_numpy()
    matrix = np.column_stack([design(column[known]) for column in columns.values()])
    groups = _indicators(other[known])
    basis = _orthonormal(matrix)
    return _corrected(_explained(basis, groups), basis.shape[1], len(groups))


def design(column: pd.Series[Any]) -> Array:
    """Return a column as numbers: itself and where it is missing, or 0/1 for each category."""
    if is_numeric_dtype(column) and not isinstance(column.dtype, pd.CategoricalDtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~np.isfinite(values)
        filled = np.where(missing, np.median(values[~missing]) if (~missing).any() else 0.0, values)
        largest = np.abs(filled).max()
        return np.column_stack([filled / largest if largest else filled, missing.astype(np.float64)])
    return _indicators(column)


def _indicators(column: pd.Series[Any]) -> Array:
    codes, values = pd.factorize(column, use_na_sentinel=False, sort=False)
    if len(values) > _MOST_CATEGORIES:  # the rest is one category
        rank = np.argsort(np.argsort(-np.bincount(codes), kind="stable"), kind="stable")
        codes = np.minimum(rank[codes], _MOST_CATEGORIES - 1)
    return np.eye(int(codes.max()) + 1)[codes]


def _orthonormal(matrix: Array) -> Array:
    """Return an orthonormal basis of the centred columns."""
    centred = matrix - matrix.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    basis: Array = left[:, sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))]
    return basis


def _explained(basis: Array, groups: Array) -> float:
    """Return the share of the groups' variation that the columns behind a basis explain."""
    share = groups.mean(axis=0)
    return float(((basis.T @ groups) ** 2).sum() / (len(groups) * (share * (1 - share)).sum()))


def _corrected(explained: float, rank: int, size: int) -> float:
    """Return the measure, with what chance explains taken off."""
    left = explained - rank / (size - 1)
    return float(np.sqrt(np.clip(left, 0.0, 1.0))) if left > 1e-12 else 0.0  # below is rounding


def _measure(matrix: Array, groups: Array, shuffled: Array) -> Association:
    """Measure a column; one distribution gives test and interval, so that they agree."""
    basis = _orthonormal(matrix)
    size, rank = basis.shape
    explained = _explained(basis, groups)
    share = groups.mean(axis=0)
    by_chance = ((shuffled @ basis) ** 2).sum(axis=(0, 2)) / (size * (share * (1 - share)).sum())
    value = _corrected(explained, rank, size)
    squared, chance = float(_squared_angle(explained)), _squared_angle(by_chance)
    mean, variance = float(chance.mean()), float(chance.var())
    if variance < 1e-12 * mean**2 or not rank:  # a constant, or as many categories as rows
        return Association(value, 0.0, 1.0 if rank else 0.0, 1.0)
    # Of the chi-square distribution with the mean and variance of the shuffles.
    freedom = 2 * mean**2 / variance
    statistic = freedom * squared / mean
    spread = max(1.0, _variance(basis, groups) * freedom / (4 * mean * squared)) if squared else 1.0
    low, high = (
        float(np.sin(min(np.sqrt(effect * mean / freedom), np.pi / 2)))
        for effect in effect_limits(statistic, freedom, spread)
    )
    return Association(value, min(low, value), max(high, value), 1 - chi_square_cdf(statistic, freedom))


def _variance(basis: Array, groups: Array) -> float:
    """Return the variance of the squared angle, from what each row adds to it (infinitesimal jackknife).

    Rare groups in rare categories make it larger than for columns that tell nothing.
    """
    size = len(groups)
    share = groups.mean(axis=0)
    apart, scores = groups - share, basis * np.sqrt(size)
    variation = (share * (1 - share)).sum()
    common = scores.T @ apart / size
    explained = (common**2).sum() / variation
    if not 0 < explained < 1 - 1e-9:
        return 0.0
    told = scores @ common
    adds = (2 * (told * apart).sum(axis=1) - (told**2).sum(axis=1)) / variation - explained
    adds -= explained * (apart @ (1 - 2 * share)) / variation
    slope = np.arcsin(np.sqrt(explained)) / np.sqrt(explained * (1 - explained))
    return float(slope**2 * (adds**2).mean() / size)


def _squared_angle(explained: float | Array) -> Array:
    """Return the square of the angle whose sine is the measure: there the noise is the same for all sizes."""
    angle: Array = np.arcsin(np.sqrt(np.clip(explained, 0.0, 1.0)))
    return angle**2


def _holm(found: Mapping[str, Association]) -> dict[str, Association]:
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(found, key=lambda key: found[key].p_value)):
        largest = max(largest, min(1.0, (len(found) - rank) * found[name].p_value))
        corrected[name] = largest
    return {name: Association(one.value, one.low, one.high, corrected[name]) for name, one in found.items()}
