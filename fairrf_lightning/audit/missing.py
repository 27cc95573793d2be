"""How large a gap can be when the group of some rows is not known: exact bounds over all memberships.

Each row without a known group may belong to any of the groups compared, or to none of them. Let group g
have n_g known rows, x_g of them decided positively, and let u_1 rows of unknown group be decided
positively and u_0 negatively.

- The largest gap gives all u_1 to one group and all u_0 to another:
  the maximum over pairs of ``(x_i + u_1) / (n_i + u_1) - x_j / (n_j + u_0)``.
- The smallest gap is ``high - low`` where ``low`` is the largest rate up to which u_1 suffice to lift all
  groups, ``sum_g (low n_g - x_g)^+ <= (1 - low) u_1``, and ``high`` the smallest down to which u_0 suffice,
  ``sum_g (x_g - high n_g)^+ <= high u_0``; 0 if these meet. Rows are taken as divisible here; with
  whole rows the smallest gap is larger by less than one row of a group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BISECTIONS = 60


def gap_bounds(
    counts: NDArray[np.int64], positives: NDArray[np.int64], unknown: int, unknown_positives: int
) -> tuple[float, float]:
    """Return the smallest and the largest gap that the unknown memberships allow.

    Args:
        counts: Rows of each group ``(G,)``.
        positives: Those decided positively.
        unknown: Rows of unknown group.
        unknown_positives: Those decided positively.

    >>> low, high = gap_bounds(np.array([10, 10]), np.array([5, 3]), 4, 2)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.333)
    """
    n, x = counts.astype(float), positives.astype(float)
    u1, u0 = float(unknown_positives), float(unknown - unknown_positives)
    highest = (x + u1) / np.maximum(n + u1, 1)
    lowest = x / np.maximum(n + u0, 1)
    differences = highest[:, None] - lowest[None, :]
    np.fill_diagonal(differences, -np.inf)
    low, high = _lifted(n, x, u1), 1 - _lifted(n, n - x, u0)
    return float(max(0.0, high - low)), float(min(1.0, max(0.0, differences.max())))


def _lifted(n: NDArray[np.float64], x: NDArray[np.float64], available: float) -> float:
    """Return the largest rate that all groups reach with ``available`` positives."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        needed = np.maximum(middle * n - x, 0).sum()
        low, high = (middle, high) if needed <= (1 - middle) * available else (low, middle)
    return high
