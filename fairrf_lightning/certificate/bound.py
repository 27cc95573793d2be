"""The certified bound on the demographic parity gap of given rows, for an S that was not observed.

Let s be S standardised, X the columns standardised on the rows, and r = p - X y the residual of the
prediction for any weights y. Then

    cov(s, p) = a' y + cov(s, r),     with a = corr(S, X) somewhere in a box,

and cov(s, r) is at most sd(r) for any S, or at most T_q(r) / sqrt(q (1 - q)) for a binary S with share q,
where T_q(r) is E[S r] if S were 1 exactly on the share q of the rows with the largest r. So **every** y
proves an upper bound. The search below only makes it small; an inexact search cannot make it wrong. With the
first bound of cov(s, r) and a known ``a``, the least upper bound is the tight interval by positive
semi-definiteness. No matrix is inverted, so columns may be collinear. With the second it is the value of a
linear programme over all S between 0 and 1, so that no better bound exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.errors import InputError

Array: TypeAlias = NDArray[np.float64]
_Objective: TypeAlias = Callable[[Array, float], tuple[float, Array, Array]]

_MAX_ROWS = 50_000  # in the search for weights; the bound is computed on all rows
_MAX_STEPS = 60
_CELLS = 64  # an interval of shares is cut into this many cells, each with a worst case of its own
_TOLERANCE = 1e-6
_MIN_POPULATION_ROWS = 400
_MAX_SHARE_OF_TRIVIAL = 0.95


class ImpossibleError(InputError):
    """No S can have the correlations that were given."""


@dataclass(frozen=True)
class Box:
    """Limits of the correlations of S with the columns, each ``(K,)``."""

    low: Array
    high: Array

    def __post_init__(self) -> None:
        inside = self.low.shape == self.high.shape and (self.low >= -1) & (self.high <= 1)
        if not np.all(inside & (self.low <= self.high)):
            raise InputError(
                "correlations: expected numbers from -1 to 1, and no lower limit above its upper one."
            )

    def support(self, weights: Array) -> float:
        """Return the largest value of ``a' weights`` over the box."""
        return float(np.maximum(weights * self.low, weights * self.high).sum())

    def widened(self, by: float) -> Box:
        """Return the box with all limits moved outwards, not beyond -1 and 1."""
        return Box(np.maximum(self.low - by, -1.0), np.minimum(self.high + by, 1.0))


@dataclass(frozen=True)
class GapBound:
    """Certain limits of ``E[p | S=1] - E[p | S=0]`` on given rows.

    Args:
        low: Least possible gap.
        high: Largest possible gap.
        rho: Limits of the correlation of S with the prediction, for any S (not only a binary one).
        by_method: Bounds of the absolute gap: ``share`` knows S's share only, ``paper`` is Theorem 2 for
            K features, ``tight`` follows from positive semi-definiteness, ``binary`` also uses that S is 0
            or 1.
        spread: Standard deviation of the prediction.
    """

    low: float
    high: float
    rho: tuple[float, float]
    by_method: dict[str, float]
    spread: float

    @property
    def bound(self) -> float:
        """The largest possible absolute gap."""
        return max(self.high, -self.low)

    @property
    def adds_nothing(self) -> bool:
        """Whether the limits are hardly better than the bound from S's share and the predictions alone.

        They are better if the bound is below 95 % of that one, or if a gap is certain.

        >>> limits = ((-0.299, 0.2), (-0.2, 0.1), (-0.3, -0.1))
        >>> [GapBound(*ends, (-1, 1), {"share": 0.303}, 0.3).adds_nothing for ends in limits]
        [True, False, False]
        """
        trivial = _MAX_SHARE_OF_TRIVIAL * self.by_method["share"]
        return self.bound > trivial - 1e-9 and self.low <= 0 <= self.high


def gap_bound(
    preds: Tensor,
    related: Tensor,
    correlations: Tensor | tuple[Tensor, Tensor],
    share: float | tuple[float, float],
) -> GapBound:
    """Bound the gap between the groups of a binary S that was not observed.

    It is certain for these rows, whatever S is, if S has this share and these correlations on them. It holds
    for probabilities and for decisions (0 or 1) alike.

    Args:
        preds: Probabilities or decisions ``(N,)``.
        related: Columns ``(N, K)``.
        correlations: Correlations of S with the columns ``(K,)``, or their lower and upper limits.
        share: Share of the rows with S = 1, or its lower and upper limit.

    Raises:
        InputError: If no S can have these correlations with these columns.

    >>> preds = torch.tensor([0.1, 0.4, 0.6, 0.9])
    >>> known = gap_bound(preds, torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([1.0]), 0.5)
    >>> print(f"{known.low:.3f} {known.high:.3f}")
    0.500 0.500
    """
    low, high = correlations if isinstance(correlations, tuple) else (correlations, correlations)
    box = Box(*(part.detach().cpu().double().numpy() for part in (low, high)))
    values, table = checked_rows(preds, related, len(box.low))
    columns, varies = standardise(table)
    limits = share if isinstance(share, tuple) else (share, share)
    return box_bound(values, columns, Box(box.low[varies], box.high[varies]), limits)


def checked_rows(preds: Tensor, columns: Tensor, num_columns: int) -> tuple[Array, Array]:
    """Return rows as arrays.

    Raises:
        InputError: If the shapes do not match, a prediction is no probability, or a value is missing.
    """
    if columns.ndim != 2 or columns.shape[1] != num_columns:
        raise InputError(f"correlations: expected {columns.shape[-1]} numbers, one for each related column.")
    values, table = (part.detach().cpu().double().numpy() for part in (preds, columns))
    if values.shape != (len(table),) or not len(table) or not np.isfinite(table).all():
        raise InputError(
            f"preds {tuple(preds.shape)} and related {tuple(columns.shape)}: expected N numbers and an "
            "(N, K) table without missing values, one line for each row."
        )
    wrong = values[~((values >= 0) & (values <= 1))]
    if len(wrong):
        raise InputError(
            f"preds has the value {wrong[0]:g}: expected probabilities or decisions, from 0 to 1. Take the "
            "sigmoid of logits."
        )
    return values, table


def box_bound(preds: Array, columns: Array, box: Box, share: tuple[float, float]) -> GapBound:
    """Return what :func:`gap_bound` returns, for standardised columns."""
    if not 0 < share[0] <= share[1] < 1:
        limits = f"{share[0]} to {share[1]}"
        raise InputError(f"share = {limits}: expected limits between 0 and 1, the lower first.")
    spread = float(preds.std())
    if np.ptp(preds) == 0:
        return GapBound(0.0, 0.0, (0.0, 0.0), dict.fromkeys(("share", "paper", "tight", "binary"), 0.0), 0.0)
    up, down = (_upper(sign * preds, columns, box, share) for sign in (1.0, -1.0))
    _check_possible(up, down, spread)
    high, low = min(up.tight, up.binary, 1.0), -min(down.tight, down.binary, 1.0)
    root = roots(share)[0]
    bounds = {
        "share": max(up.share, down.share),
        "paper": _paper_radius(preds, columns, box) * spread / root,
        "tight": max(up.tight, down.tight, 0.0),
        "binary": max(up.binary, down.binary, 0.0),
    }
    rho = (max(-down.covariance / spread, -1.0), min(up.covariance / spread, 1.0))
    return GapBound(low, high, rho, {name: float(min(value, 1.0)) for name, value in bounds.items()}, spread)


def standardise(columns: Array) -> tuple[Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return the columns that vary, with mean 0 and deviation 1, and a mask of them."""
    mean, std = columns.mean(axis=0), columns.std(axis=0)
    varies = (np.ptp(columns, axis=0) > 0) & (std > 1e-12 * np.abs(mean))
    return (columns[:, varies] - mean[varies]) / std[varies], varies


@dataclass(frozen=True)
class _Upper:
    covariance: float  # of the prediction with S standardised, any S
    tight: float
    binary: float
    share: float


def _upper(preds: Array, columns: Array, box: Box, share: tuple[float, float]) -> _Upper:
    moments = second_moments(preds, columns)
    weights = weights_any(moments, box)
    covariance = box.support(weights) + residual_spread(weights, moments)
    none = np.zeros_like(weights)
    found = [weights_binary(preds, columns, box, end, weights) for end in dict.fromkeys(share)]
    candidates = [none, weights, *found]
    return _Upper(
        covariance,
        tight=max(covariance / root for root in roots(share)),
        binary=_binary_gap(preds, columns, box, share, candidates),
        share=_binary_gap(preds, columns, box, share, [none]),
    )


def roots(share: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the largest sqrt(q (1 - q)) between two shares."""
    ends = [math.sqrt(q * (1 - q)) for q in share]
    return min(ends), 0.5 if share[0] <= 0.5 <= share[1] else max(ends)


def share_edges(share: tuple[float, float]) -> Array:
    """Return the edges of the cells of an interval of shares."""
    return np.linspace(*share, _CELLS + 1) if share[0] < share[1] else np.array(share)


def _binary_gap(
    preds: Array, columns: Array, box: Box, share: tuple[float, float], candidates: Iterable[Array]
) -> float:
    edges = share_edges(share)
    cells = list(pairwise(edges.tolist()))
    bounds = np.full(len(cells), np.inf)
    for weights in candidates:
        support = box.support(weights)
        tops = _top_sums(preds - preds.mean() - columns @ weights, edges)
        found = [_largest_gap(support, top, cell) for cell, top in zip(cells, tops, strict=True)]
        bounds = np.minimum(bounds, found)
    return float(bounds.max()) + 1e-9  # covers rounding


def _largest_gap(support: float, top: float, share: tuple[float, float]) -> float:
    least, largest = roots(share)
    return max(support / least, support / largest) + top / least**2


def _top_sums(residual: Array, edges: Array) -> Array:
    """Return the largest T_q of the residual with q in each cell; T_q is concave in q."""
    ordered = np.sort(residual)[::-1]
    knots = np.arange(len(ordered) + 1) / len(ordered)
    sums = np.concatenate([[0.0], np.cumsum(ordered)]) / len(ordered)
    peak: Array = np.clip(knots[sums.argmax()], edges[:-1], edges[1:])
    top: Array = np.interp(peak, knots, sums)
    return top


def _paper_radius(preds: Array, columns: Array, box: Box) -> float:
    if not columns.shape[1]:
        return 1.0
    least = np.maximum(np.maximum(box.low, -box.high), 0.0)
    centred = preds - preds.mean()
    with_preds = columns.T @ centred / (len(preds) * preds.std())
    return k_feature_interval(torch.from_numpy(least), torch.from_numpy(with_preds))[1]


def _check_possible(up: _Upper, down: _Upper, spread: float) -> None:
    if up.covariance + down.covariance < -_TOLERANCE * spread or up.binary + down.binary < -_TOLERANCE:
        raise ImpossibleError(
            "correlations: no S can have these correlations with these columns on these rows. Take all of "
            "them, and the share, from the same source; where a number is rounded or of another population, "
            "give an interval [low, high]."
        )


def second_moments(preds: Array, columns: Array) -> tuple[Array, Array, float]:
    """Return ``C``, the covariances with the prediction, and its variance; ``columns`` are standardised."""
    centred = preds - preds.mean()
    size = len(preds)
    return columns.T @ columns / size, columns.T @ centred / size, float(centred @ centred / size)


def residual_spread(weights: Array, moments: tuple[Array, Array, float]) -> float:
    """Return sd(r), rounded up to cover cancellation."""
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
        hessian = (corr - np.outer(slope, slope)) / spread + np.diag(curvature)
        return spread + value, slope + gradient, hessian

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
    if len(preds) > _MAX_ROWS:
        rows = np.linspace(0, len(preds) - 1, _MAX_ROWS).astype(np.intp)
        box = box.widened(3 / np.sqrt(_MAX_ROWS))  # correlations on these rows are a little different
    design = np.column_stack([columns[rows], np.ones(len(rows))])
    objective = _binary_objective(centred[rows] / scale, design, box, share)
    found = _minimise(objective, first, 10.0 ** -np.arange(0.5, 4.5, 0.5), floor=-1.5)
    weights: Array = scale * found[:-1]
    return weights


def _binary_objective(preds: Array, design: Array, box: Box, share: float) -> _Objective:
    size, root = len(preds), np.sqrt(share * (1 - share))

    def objective(point: Array, smooth: float) -> tuple[float, Array, Array]:
        excess = preds - design @ point
        length = np.sqrt(excess**2 + smooth**2)
        slope = -design.T @ (1 + excess / length) / (2 * size * root)
        slope[-1] += share / root
        curvature = (design.T * (smooth**2 / (2 * length**3))) @ design / (size * root)
        value, gradient, bend = _box_terms(point[:-1], box, smooth)
        value += float((excess + length).mean() / 2 + share * point[-1]) / root
        return value, slope + np.append(gradient, 0.0), curvature + np.diag(np.append(bend, 0.0))

    return objective


def _box_terms(y: Array, box: Box, smooth: float) -> tuple[float, Array, Array]:
    middle, half = (box.high + box.low) / 2, (box.high - box.low) / 2
    length = np.sqrt(y**2 + smooth**2)
    return float(middle @ y + half @ length), middle + half * y / length, half * smooth**2 / length**3


def _minimise(objective: _Objective, point: Array, stages: Array, floor: float) -> Array:
    """Minimise a smoothed convex function by Newton's method, with less and less smoothing."""
    identity = np.eye(len(point))
    for smooth in stages if len(point) else ():
        found = objective(point, smooth)
        for _ in range(_MAX_STEPS):
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
                break  # only rounding is left
    return point


# --- in the population


def population_bound(
    preds: Array,
    related: Array,
    box: Box,
    share: tuple[float, float],
    *,
    level: float = 0.99,
    seed: int = 0,
) -> float | None:
    """Return an upper confidence limit of the absolute gap in the population, or ``None`` for too few rows.

    Correlations and share are those of the population. Half of the rows, drawn at random, choose the
    weights y and a threshold t; on the other half, which is independent of them, the bound
    ``sum_j max(a_j y_j) sd(x_j) sqrt(q (1 - q)) + mean((r - t)_+ - q (r - t))`` of the covariance of S and p
    is a smooth function of means, for which a normal limit is taken. Three such limits for each sign of the
    gap hold together at ``level`` by Bonferroni. A normal limit fails for rare events, most of all for
    decisions that are all the same on these rows; so the mean's limit is raised by what an event that was
    not seen in n rows may weigh: ``1 - (error probability) ** (1 / n)`` of its largest loss.
    ``level`` is the confidence as far as the rows are concerned.
    """
    if len(preds) < _MIN_POPULATION_ROWS:
        return None
    order = np.random.default_rng(seed).permutation(len(preds))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    columns, varies = standardise(related[first])
    mean, std = related[first].mean(axis=0)[varies], related[first].std(axis=0)[varies]
    kept = Box(box.low[varies], box.high[varies])
    fresh = (related[second][:, varies] - mean) / std
    z = NormalDist().inv_cdf(1 - (1 - level) / 6)
    limits = []
    for sign in (1.0, -1.0):
        weights = _population_weights(sign * preds[first], columns, kept, share, z)
        limits.append(_population_limit(sign * preds[second], fresh, kept, share, weights, z))
    return float(np.clip(max(limits), 0.0, 1.0))


def _population_weights(
    preds: Array, columns: Array, box: Box, share: tuple[float, float], z: float
) -> tuple[Array, float]:
    """Return the weights and the threshold that do best on these rows, the error of the limit included."""
    # S correlates a little differently here; weights fitted to the last digit do badly on other rows.
    wide = box.widened(2 / np.sqrt(len(preds)))
    none = np.zeros(columns.shape[1])
    start = weights_any(second_moments(preds, columns), wide) if np.ptp(preds) else none
    worst = min(share, key=lambda q: q * (1 - q))
    found = (none, start, weights_binary(preds, columns, wide, worst, start))
    quantile = 1 - sum(share) / 2
    candidates = [(y, float(np.quantile(preds - columns @ y, quantile))) for y in found]
    # Far below 0 is no better: such weights do badly on other rows.
    return min(candidates, key=lambda one: abs(_population_limit(preds, columns, box, share, one, z)))


def _population_limit(  # noqa: PLR0917 - all of them make up the limit
    preds: Array,
    columns: Array,
    box: Box,
    share: tuple[float, float],
    chosen: tuple[Array, float],
    z: float,
) -> float:
    weights, threshold = chosen
    size = len(preds)
    centred = columns - columns.mean(axis=0)
    spreads = centred.std(axis=0)
    sides = np.maximum(weights * box.low, weights * box.high)
    # Influence of a row on sum_j side_j sd(x_j), to first order.
    safe = np.where(spreads > 0, spreads, 1.0)
    influence = (centred**2 - spreads**2) @ (sides / (2 * safe))
    support = float(sides @ spreads + z * influence.std() / np.sqrt(size))
    excess = preds - columns @ weights - threshold
    ends = []
    unseen = -np.expm1(np.log(NormalDist().cdf(-z)) / size)  # frequency of an event that may not occur
    for q in share:
        loss = np.maximum(excess, 0.0) - q * excess
        largest = max(float(loss.max()), q, 1 - q)  # the latter for a prediction at the other end
        ends.append(float(loss.mean() + z * loss.std() / np.sqrt(size) + unseen * largest))
    # The loss is linear in q, so limits at both ends are limits in between.
    edges = share_edges(share)
    tops = np.interp(edges, share, ends) if share[0] < share[1] else np.array(ends)
    cells = zip(pairwise(edges.tolist()), pairwise(tops.tolist()), strict=True)
    return max(_largest_gap(support, max(top), cell) for cell, top in cells)


# --- the paper's bound


def k_feature_interval(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Bound ``rho(S, p)`` by K features that correlate with S but hardly with p (Theorem 2 for K features).

    With the largest ``|a| = cos(alpha)`` and the largest ``|b| = sin(delta)`` it lies within
    ``-+ sin(alpha + delta)``. The paper does not mention the condition ``alpha + delta <= pi / 2``. Beyond it
    nothing is known, and the interval is [-1, 1].

    Args:
        a: Correlations of the features with S, ``(K,)``.
        b: Correlations of the features with the prediction, ``(K,)``.

    >>> low, high = k_feature_interval(torch.tensor([0.8]), torch.tensor([0.0]))
    >>> print(f"{low:.1f} {high:.1f}")
    -0.6 0.6
    """
    values = torch.cat([a, b])
    # Rounding may put an estimated correlation of 1 a little above it.
    if not len(a) or not bool((values.abs() <= 1 + 1e-6).all()):
        raise InputError(f"correlations = {values.tolist()}: expected numbers from -1 to 1.")
    alpha = math.acos(min(1.0, float(a.double().abs().max())))
    delta = math.asin(min(1.0, float(b.double().abs().max())))
    radius = math.sin(min(alpha + delta, math.pi / 2))
    return -radius, radius
