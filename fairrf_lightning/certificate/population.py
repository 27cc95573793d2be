"""A bound for the population that the rows were drawn from."""

from __future__ import annotations

from itertools import pairwise
from statistics import NormalDist

import numpy as np

from fairrf_lightning.certificate.bound import (
    Array,
    Box,
    roots,
    second_moments,
    share_edges,
    standardise,
    weights_any,
    weights_binary,
)

_MIN_ROWS = 400


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

    Args:
        preds: Probabilities or decisions ``(N,)``, a random sample of the population's.
        related: Columns of the same rows ``(N, K)``.
        box: Correlations of S with the columns in the population.
        share: Least and largest share of S = 1 in the population.
        level: Confidence level as far as the rows are concerned.
        seed: Seed of the halves.
    """
    if len(preds) < _MIN_ROWS:
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
        weights = _chosen(sign * preds[first], columns, kept, share, z)
        limits.append(_upper_limit(sign * preds[second], fresh, kept, share, weights, z))
    return float(np.clip(max(limits), 0.0, 1.0))


def _chosen(
    preds: Array, columns: Array, box: Box, share: tuple[float, float], z: float
) -> tuple[Array, float]:
    """Return the weights and the threshold that do best on these rows, the error of the limit included."""
    # S correlates a little differently here; weights fitted to the last digit do badly on other rows.
    wide = box.widened(2 / np.sqrt(len(preds)))
    none = np.zeros(columns.shape[1])
    start = weights_any(second_moments(preds, columns), wide) if np.ptp(preds) else none
    worst = min(share, key=lambda q: q * (1 - q))
    candidates = []
    for weights in (none, start, weights_binary(preds, columns, wide, worst, start)):
        residual = preds - columns @ weights
        candidates.append((weights, float(np.quantile(residual, 1 - sum(share) / 2))))
    # Far below 0 is no better: such weights do badly on other rows.
    return min(candidates, key=lambda one: abs(_upper_limit(preds, columns, box, share, one, z)))


def _upper_limit(  # noqa: PLR0917 - all of them make up the limit
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
    return max(
        max(support / root for root in roots(cell)) + float(max(top)) / roots(cell)[0] ** 2
        for cell, top in zip(pairwise(edges.tolist()), pairwise(tops.tolist()), strict=True)
    )
