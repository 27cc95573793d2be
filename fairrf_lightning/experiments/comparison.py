"""Differences between methods, paired by seed, with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the mean and the ends, signed."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def mean_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """Return the t-interval of a mean over seeds."""
    array = np.array(list(values), dtype=float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, float("nan"), float("nan"))
    radius = float(stats.t.ppf((1 + level) / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - radius, mean + radius)


def difference(runs: pd.DataFrame, baseline: pd.DataFrame, measure: str) -> Interval:
    """Return the mean of ``runs - baseline`` over their common seeds; the splits are the same."""
    pairs = runs.groupby("seed")[measure].mean() - baseline.groupby("seed")[measure].mean()
    return mean_interval(pairs.dropna())
