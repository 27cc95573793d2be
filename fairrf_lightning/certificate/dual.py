"""The worst case over all that is possible, bounded from above by duality.

Let s be S standardised, X columns standardised on the rows, and r = p - X y the residual of the prediction
for any weights y. Then

    cov(s, p) = a' y + cov(s, r),     with a = corr(S, X) somewhere in a box,

and cov(s, r) is at most sd(r) for any S, or at most T_q(r) / sqrt(q (1 - q)) for a binary S with share q,
where T_q(r) is E[S r] if S were 1 exactly on the share q of the rows with the largest r. So **every** y
proves an upper bound; the search below only makes it small, and an inexact search cannot make it wrong. With
the first bound of cov(s, r) and a known ``a``, the least upper bound is the tight interval by positive
semi-definiteness; no matrix is inverted, so columns may be collinear. With the second it is the value of a
linear programme over all S between 0 and 1, so that no better bound exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Objective: TypeAlias = Callable[[Array, float], tuple[float, Array, Array]]

_MOST_ROWS = 50_000  # for the search of the weights; the bound is computed on all rows
_MOST_STEPS = 60


@dataclass(frozen=True)
class Box:
    """Where the correlations of S with the columns lie, ``low`` to ``high``, each ``(K,)``."""

    low: Array
    high: Array

    def support(self, weights: Array) -> float:
        """Return the largest value of ``a' weights`` over the box."""
        return float(np.maximum(weights * self.low, weights * self.high).sum())

    def widened(self, by: float) -> Box:
        """Return the box with all limits moved outwards, not beyond -1 and 1."""
        return Box(np.maximum(self.low - by, -1.0), np.minimum(self.high + by, 1.0))


def second_moments(preds: Array, columns: Array) -> tuple[Array, Array, float]:
    """Return ``C``, the covariances with the prediction, and its variance; ``columns`` are standardised."""
    centred = preds - preds.mean()
    size = len(preds)
    return columns.T @ columns / size, columns.T @ centred / size, float(centred @ centred / size)


def residual_spread(weights: Array, moments: tuple[Array, Array, float]) -> float:
    """Return sd(r), rounded up by what cancellation may have cost."""
    corr, cov, variance = moments
    square = variance - 2 * cov @ weights + weights @ corr @ weights
    lost = 8 * np.finfo(np.float64).eps * len(cov) * (np.sqrt(variance) + np.abs(weights).sum()) ** 2
    return float(np.sqrt(max(square, 0.0) + lost))


def weights_any(moments: tuple[Array, Array, float], box: Box) -> Array:
    """Find weights that make ``support(y) + sd(r)`` small: the bound for any S."""
    corr, cov, variance = moments
    scale = np.sqrt(variance)

    def objective(y: Array, smooth: float) -> tuple[float, Array, Array]:
        spread = np.sqrt(max(1 - 2 * cov @ y / scale + y @ corr @ y, 0.0) + smooth**2)
        slope = (corr @ y - cov / scale) / spread
        value, gradient, curvature = _box_terms(y, box, smooth)
        return (
            spread + value,
            slope + gradient,
            (corr - np.outer(slope, slope)) / spread + np.diag(curvature),
        )

    stages = 10.0 ** -np.arange(1.0, 9.5, 0.5)
    weights: Array = scale * _minimise(objective, np.zeros_like(cov), stages, floor=-1.5)
    return weights


def weights_binary(preds: Array, columns: Array, box: Box, share: float, start: Array) -> Array:
    """Find weights that make ``support(y) + T_q(r) / sqrt(q (1 - q))`` small: the bound for a binary S.

    ``T_q(r)`` is the least value over t of ``mean((r - t)_+) + q t`` for a centred r.
    """
    centred = preds - preds.mean()
    scale = float(centred.std()) or 1.0
    first = np.append(start, np.quantile(centred - columns @ start, 1 - share)) / scale
    rows = np.arange(len(preds))
    if len(preds) > _MOST_ROWS:
        rows = np.linspace(0, len(preds) - 1, _MOST_ROWS).astype(np.intp)
        box = box.widened(3 / np.sqrt(_MOST_ROWS))  # correlations on these rows are a little different
    design = np.column_stack([columns[rows], np.ones(len(rows))])
    objective = _binary_objective(centred[rows] / scale, design, box, share)
    found = _minimise(objective, first, 10.0 ** -np.arange(0.5, 4.5, 0.5), floor=-1.5)
    weights: Array = scale * found[:-1]
    return weights


def _binary_objective(preds: Array, design: Array, box: Box, share: float) -> Objective:
    size, root = len(preds), np.sqrt(share * (1 - share))

    def objective(point: Array, smooth: float) -> tuple[float, Array, Array]:
        excess = preds - design @ point
        length = np.sqrt(excess**2 + smooth**2)
        slope = -design.T @ (1 + excess / length) / (2 * size * root)
        slope[-1] += share / root
        curvature = (design.T * (smooth**2 / (2 * length**3))) @ design / (size * root)
        value, gradient, bend = _box_terms(point[:-1], box, smooth)
        return (
            float((excess + length).mean() / 2 + share * point[-1]) / root + value,
            slope + np.append(gradient, 0.0),
            curvature + np.diag(np.append(bend, 0.0)),
        )

    return objective


def _box_terms(y: Array, box: Box, smooth: float) -> tuple[float, Array, Array]:
    middle, half = (box.high + box.low) / 2, (box.high - box.low) / 2
    length = np.sqrt(y**2 + smooth**2)
    return float(middle @ y + half @ length), middle + half * y / length, half * smooth**2 / length**3


def _minimise(objective: Objective, point: Array, stages: Array, floor: float) -> Array:
    """Minimise a smoothed convex function by Newton's method, with less and less smoothing."""
    identity = np.eye(len(point))
    for smooth in stages if len(point) else ():
        found = objective(point, smooth)
        for _ in range(_MOST_STEPS):
            value, gradient, hessian = found
            if value < floor:
                return point  # no S has such correlations, and this point proves it
            ridge = 1e-12 * (1 + np.trace(hessian) / len(point))
            step = -np.linalg.solve(hessian + ridge * identity, gradient)
            decrease = -float(gradient @ step)
            if not decrease > 1e-13:
                break
            for length in 0.5 ** np.arange(27):
                found = objective(point + length * step, smooth)
                if found[0] <= value - 0.1 * length * decrease:
                    point = point + length * step
                    break
            else:
                break  # rounding is all that is left
    return point
