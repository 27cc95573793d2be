"""An interval for the difference of two proportions on the same rows, such as the accuracies of two models.

Rows that both models get right, or both get wrong, say nothing of the difference; what counts is how
the rows divide that only one of them gets right. The interval is Tango's score interval (1998,
Statistics in Medicine 17:891): a difference is in it if the observed one is no surprise under it, with
the variance of the most likely shares that have this difference. It holds for few rows, and also where
the models never differ, for which Wald's interval would have no width.
"""

from __future__ import annotations

import math

from fairrf_lightning.metrics.intervals import normal_quantile

_BISECTIONS = 60


def paired_difference_interval(
    first_only: int, second_only: int, rows: int, level: float = 0.95
) -> tuple[float, float]:
    """Return Tango's limits for the first proportion minus the second; NaN without rows.

    Args:
        first_only: Rows where only the first is a success.
        second_only: Rows where only the second is.
        rows: All rows.
        level: Confidence level between 0 and 1.

    >>> low, high = paired_difference_interval(40, 20, 160)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0309 0.2181
    """
    z = normal_quantile(level)
    if not rows:
        return math.nan, math.nan
    low = -_upper_limit(second_only, first_only, rows, z)
    return low, _upper_limit(first_only, second_only, rows, z)


def _upper_limit(first_only: int, second_only: int, rows: int, z: float) -> float:
    estimate = (first_only - second_only) / rows
    inside, outside = estimate, 1.0
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        share = _likely_share(first_only, second_only, rows, middle)
        variance = (2 * share + middle * (1 - middle)) / rows
        is_inside = (estimate - middle) ** 2 <= z**2 * variance
        inside, outside = (middle, outside) if is_inside else (inside, middle)
    return inside


def _likely_share(first_only: int, second_only: int, rows: int, difference: float) -> float:
    """Return the most likely share of rows where only the second is a success, given the difference."""
    linear = (2 * rows - first_only + second_only) * difference - first_only - second_only
    constant = -second_only * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear**2 - 8 * rows * constant))
    # Of the two forms of the solution the one without a difference of nearly equal numbers.
    return -2 * constant / (linear + root) if linear > 0 else (root - linear) / (4 * rows)
