"""Correlations and share of S from a few hundred rows where it is known, with intervals."""

from __future__ import annotations

import numpy as np

from fairrf_lightning.certificate.dual import Array, Box
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.intervals import wilson_interval

FEWEST_ROWS = 100
_FEWEST_EACH = 10  # rows of a group; and half of the rows off a column's most frequent value
_DRAWS = 2000


def sample_box(
    columns: Array, sensitive: Array, level: float = 0.96, seed: int = 0
) -> tuple[Box, tuple[float, float]]:
    """Estimate intervals of S's correlations with the columns and of its share, together at ``level``.

    The share gets a quarter of the error and Wilson's interval. The correlations get intervals
    ``tanh(atanh(r) -+ c se)`` with standard errors from the bootstrap and one factor ``c`` for all, which is
    such that the largest deviation over the columns stays below it (the bootstrap of the maximum). Of a
    column that hardly varies in the sample nothing is said: its interval is [-1, 1].

    Args:
        columns: Columns ``(n, K)`` of the sampled rows.
        sensitive: S of them, 0 or 1.
        level: Level at which all intervals hold together.
        seed: Seed of the bootstrap.
    """
    counts = int(sensitive.sum()), int(len(sensitive) - sensitive.sum())
    if len(sensitive) < FEWEST_ROWS or min(counts) < _FEWEST_EACH:
        raise InputError(
            f"audit sample: {counts[0]} rows of the group and {counts[1]} others, expected at least "
            f"{FEWEST_ROWS} in all and {_FEWEST_EACH} of each. A few hundred give a useful bound."
        )
    low, high = wilson_interval(counts[0], len(sensitive), 1 - (1 - level) / 4)
    share = float(low), float(high)
    box = Box(np.full(columns.shape[1], -1.0), np.full(columns.shape[1], 1.0))
    usable = np.flatnonzero(_minority(columns) >= 2 * _FEWEST_EACH)
    if len(usable):
        found = _bootstrap_limits(columns[:, usable], sensitive, 1 - (1 - level) * 3 / 4, seed)
        box.low[usable], box.high[usable] = found
    return box, share


def _minority(columns: Array) -> Array:
    """Return how many rows do not hold a column's most frequent value."""
    frequent = [np.unique(column, return_counts=True)[1].max() for column in columns.T]
    return len(columns) - np.array(frequent, dtype=np.float64)


def _bootstrap_limits(columns: Array, sensitive: Array, level: float, seed: int) -> tuple[Array, Array]:
    size = len(sensitive)
    weights = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=_DRAWS) / size
    scaled = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    estimate = _fisher(np.full((1, size), 1 / size), scaled, sensitive)[0]
    drawn = _fisher(weights, scaled, sensitive)
    error = drawn.std(axis=0)
    # At least what Fisher's formula gives: few rows in a cell can make the bootstrap too sure.
    error = np.maximum(error, 1 / np.sqrt(size - 3))
    largest = (np.abs(drawn - estimate) / error).max(axis=1)
    factor = float(np.quantile(largest, level, method="higher"))
    return np.tanh(estimate - factor * error), np.tanh(estimate + factor * error)


def _fisher(weights: Array, columns: Array, sensitive: Array) -> Array:
    """Return atanh of the correlations under each of the weights, ``(draws, K)``."""
    share = weights @ sensitive
    mean = weights @ columns
    product = weights @ (columns * sensitive[:, None]) - mean * share[:, None]
    variance = np.maximum(weights @ columns**2 - mean**2, 0.0) * (share * (1 - share))[:, None]
    rho = np.divide(product, np.sqrt(variance), out=np.zeros_like(product), where=variance > 1e-12)
    limited: Array = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    return limited
