"""Formulas with membership in place of S: its fit, the most accurate decisions under a gap, group rates.

Groups are given by membership ``g_k(x) = P(S = k | x)``, ``(..., N, G)``. For a decision d that depends on
the inputs only, the rate of group k is ``E[d | S = k] = E[d g_k] / E[g_k]``: membership replaces S exactly.

The most accurate decision under a limit on the largest difference of these rates is a threshold that
depends on membership (for two groups cf. Menon and Williamson 2018). With shares ``q_k = E[g_k]`` it is
positive if ``p - 1/2 >= sum_k m_k g_k / (2 q_k)``. The multipliers add up to 0; ``m_k`` is the accuracy paid
for a unit of the rate of group k. For equal opportunity membership is ``P(S = k | x, y = 1)`` and the sum has
a factor p.

With a survey, rates are prediction powered (Angelopoulos et al. 2023): ``E[d S_k]`` is estimated by the mean
of ``d g_k`` over many rows plus the mean of ``d (S_k - g_k)`` over the surveyed people. The second mean
corrects the errors of g, so the estimate is consistent whatever g is. g must not have seen the answer of the
person it is evaluated at (cross-fitting, Zrnic and Candes 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_MAX_NEWTON_STEPS = 100
_TOLERANCE = 1e-15
_EDGE = 1e-6  # corrected scores lie between this and 1 minus this


def fit_logistic(
    inputs: Tensor,
    answers: Tensor,
    strength: float,
    *,
    weights: Tensor | None = None,
    randomized: float = 0.0,
    num_groups: int = 2,
    start: Tensor | None = None,
) -> Tensor:
    """Fit ``P(S = 1 | x)`` by logistic regression with an L2 penalty, by Fisher scoring.

    Minimises ``|w|^2 / 2 + strength * (sum of log losses of the answers)``; the intercept has no penalty.
    An answer was replaced by a random one with a known probability, so it is 1 with probability
    ``(1 - randomized) P(S = 1 | x) + randomized / num_groups``.

    Args:
        inputs: Columns ``(n, D)``.
        answers: 0 or 1, ``(n,)``.
        strength: ``C`` of scikit-learn's LogisticRegression.
        weights: Weight of each row ``(..., n)``, by default 1; leading dimensions are fits of their own.
        randomized: Probability that an answer was replaced by one drawn uniformly from the groups.
        num_groups: Number of groups that the random answers are drawn from.
        start: Coefficients to start from, ``(..., D + 1)``.

    Returns:
        The weights of the columns and, last, the intercept, ``(..., D + 1)``, in float64.
    """
    design = torch.nn.functional.pad(inputs.double(), (0, 1), value=1.0)
    target = answers.double()
    rows = strength * (torch.ones_like(target) if weights is None else weights.double())
    ridge = torch.ones(design.shape[1], dtype=torch.float64)
    ridge[-1] = 0.0

    def likelihood(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective, the probabilities of the answer 1, and membership."""
        member = (point @ design.T).sigmoid()
        probs = ((1 - randomized) * member + randomized / num_groups).clamp(1e-15, 1 - 1e-15)
        losses = -(target * probs.log() + (1 - target) * (1 - probs).log())
        return (ridge * point.square()).sum(-1) / 2 + (rows * losses).sum(-1), probs, member

    point = rows.new_zeros(*rows.shape[:-1], len(ridge)) if start is None else start
    value, probs, member = likelihood(point)
    for _ in range(_MAX_NEWTON_STEPS):
        slope = (1 - randomized) * member * (1 - member)
        variance = probs * (1 - probs)
        gradient = ridge * point - (rows * (target - probs) * slope / variance) @ design
        information = rows * slope.square() / variance
        hessian = torch.diag(ridge + 1e-12) + (design.T * information.unsqueeze(-2)) @ design
        step = torch.linalg.solve(hessian, gradient)
        if not bool(((gradient * step).sum(-1) > _TOLERANCE).any()):
            break
        for _ in range(30):  # halve the step until it helps; the loss of randomised answers is not convex
            found, probs, member = likelihood(point - step)
            if bool((found <= value).all()):
                break
            step = torch.where((found <= value).unsqueeze(-1), step, step / 2)
        point, value = point - step, found
    return point


def ridge_membership(share: float, correlations: Tensor, C: Tensor) -> Tensor:  # noqa: N803 - the matrix is C in the formula
    """Return the weights of the best linear predictor of S from its correlations with columns.

    ``g(x) = q + sqrt(q (1 - q)) a' (C + 0.001 I)^-1 z`` for standardised columns z, without the directions in
    which the columns have a variance (an eigenvalue of C) below 0.01.

    Args:
        share: Share q of S = 1.
        correlations: Correlations a of S with the columns, ``(K,)``.
        C: Correlation matrix of the columns, ``(K, K)``.

    Returns:
        The weights of z, ``(K,)``.
    """
    variances, directions = torch.linalg.eigh(C.double())
    scaled = torch.where(variances >= 0.01, 1 / (variances + 1e-3), 0.0)
    weights: Tensor = directions @ (scaled * (directions.T @ correlations.double()))
    return math.sqrt(share * (1 - share)) * weights


def membership_rates(decisions: Tensor, membership: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the estimated rate of positive decisions in each group, ``E[d g_k] / E[g_k]``, ``(..., G)``.

    Decisions ``(..., N)`` may be probabilities. If ``mask``, ``(N,)``, is given, only its rows count.

    >>> decisions, member = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.5, 1.0])
    >>> membership_rates(decisions, torch.stack([1 - member, member], -1))
    tensor([0.7500, 0.2500])
    """
    member = membership if mask is None else membership * mask.to(membership).unsqueeze(-1)
    return decisions.to(member) @ member / member.sum(0)


def correction_costs(probs: Tensor, membership: Tensor, share: Tensor, *, positives: bool) -> Tensor:
    """Return ``g_k / (2 q_k)``, with a factor p for equal opportunity (``positives``), ``(..., N, G)``."""
    costs = membership / (2 * share)
    return costs * probs.unsqueeze(-1) if positives else costs


def corrected_scores(probs: Tensor, costs: Tensor, multipliers: Tensor) -> Tensor:
    """Return ``p - sum_k m_k cost_k``, limited to the open interval (0, 1): positive from 0.5.

    >>> member = torch.tensor([0.2, 0.8])
    >>> costs = correction_costs(torch.tensor([0.5, 0.5]), torch.stack([1 - member, member], -1),
    ...     torch.tensor([0.5, 0.5]), positives=False)
    >>> corrected_scores(torch.tensor([0.5, 0.5]), costs, torch.tensor([0.1, -0.1]))
    tensor([0.4400, 0.5600])
    """
    return (probs - (costs * multipliers).sum(-1)).clamp(_EDGE, 1 - _EDGE)


class PathPoint(NamedTuple):
    """Multipliers ``(G,)``, decisions ``(N,)`` and estimated rates ``(G,)`` on :func:`correction_path`."""

    multipliers: Tensor
    decisions: Tensor
    rates: Tensor


def correction_path(
    probs: Tensor, costs: Tensor, membership: Tensor, mask: Tensor | None = None, *, flips: int = 1
) -> Iterator[PathPoint]:
    """Yield decisions of increasing strength, from the uncorrected ones until the rates are equal.

    Each step moves the multipliers of the groups with the highest and the lowest rate apart, just so far
    that the next decisions change. With two groups and ``flips=1`` these are all different decisions of the
    family; the multipliers lie midway between those where a decision changes.

    Args:
        probs: Probabilities ``(N,)``.
        costs: Costs of :func:`correction_costs`, ``(N, G)``.
        membership: Membership that the rates are computed with, ``(N, G)``.
        mask: Rows that the rates are computed on; all when ``None``.
        flips: Number of decisions that change in a step (more if rows are equal).
    """
    num_rows, num_groups = costs.shape
    margin, multipliers = probs - 0.5, torch.zeros_like(costs[0])
    before: tuple[int, int] | None = None
    start, strengths = multipliers, iter(tuple[float, ...]())
    for _ in range(1 + num_groups * num_rows // flips):
        left = margin - costs @ multipliers
        decisions = left >= 0
        rates = membership_rates(decisions, membership, mask)
        yield PathPoint(multipliers, decisions, rates)
        high, low = int(rates.argmax()), int(rates.argmin())
        if high == low or before == (low, high):
            return  # the rates are equal up to a step
        if before != (high, low):
            start, strengths = multipliers, _strengths(left, costs[:, high] - costs[:, low], flips)
        before = high, low
        strength = next(strengths, None)
        if strength is None:
            return
        multipliers = start.clone()
        multipliers[high] += strength
        multipliers[low] -= strength


def _strengths(left: Tensor, direction: Tensor, flips: int) -> Iterator[float]:
    """Yield the strengths along a direction at which ``flips`` more decisions have changed."""
    changes = (left >= 0) == (direction > 0)  # a positive decision changes where its cost grows
    steps = (left / direction)[changes & (direction != 0)].clamp(min=0).sort().values
    after = torch.searchsorted(steps, steps, right=True).tolist()  # the first one that is larger
    values, place = steps.tolist(), 0
    while place < len(values):
        last = values[min(place + flips, len(values)) - 1]
        place = after[min(place + flips, len(values)) - 1]
        yield (last + values[place]) / 2 if place < len(values) else 1.5 * last + 1e-9


class PoweredRates(NamedTuple):
    """Estimated rates of G groups, from n surveyed people and N other rows.

    Args:
        rates: Rates ``(G,)``.
        left_out: Rates without each of the surveyed people, ``(n, G)``, for the jackknife.
        influence: First-order influence of each of the other rows on the rates, ``(N, G)``.
        num_models: Number of models of membership, each of which is corrected by people it has not seen.
    """

    rates: Tensor
    left_out: Tensor
    influence: Tensor
    num_models: int = 1

    def difference(self, first: int, second: int) -> tuple[float, float, float]:
        """Return the difference of two rates, its standard error and its degrees of freedom."""
        value = self.rates[first] - self.rates[second]
        replicates = self.left_out[:, first] - self.left_out[:, second]
        deviations = (replicates - replicates.mean()).square()
        size = len(deviations)
        # Each model takes up a degree of freedom, which matters for few people only.
        surveyed = deviations.sum() * (size - 1) / (size - self.num_models)
        rest = (self.influence[:, first] - self.influence[:, second]).var() / len(self.influence)
        # Degrees of freedom of a variance by its kurtosis: few people of a rare group may carry most of it.
        kurtosis = size * deviations.square().sum() / deviations.sum().square().clamp(min=1e-300)
        freedom = 2 * size / (kurtosis - 1).clamp(min=1e-9)
        freedom = freedom * ((surveyed + rest) / surveyed.clamp(min=1e-300)).square()
        return float(value), float((surveyed + rest).sqrt()), float(freedom.clamp(1.0, 1e6))


def powered_rates(
    decisions: Tensor,
    membership: Tensor,
    survey_decisions: Tensor,
    survey_membership: Tensor,
    indicators: Tensor,
    *,
    mask: Tensor | None = None,
    survey_mask: Tensor | None = None,
    num_models: int = 1,
) -> PoweredRates:
    """Estimate the rate of positive decisions in each group.

    Args:
        decisions: Decisions or scores on rows without S, ``(N,)``.
        membership: Membership on these rows ``(N, G)``.
        survey_decisions: Decisions on the surveyed people ``(n,)``.
        survey_membership: Cross-fitted membership of the surveyed people ``(n, G)``.
        indicators: Their groups as 0 or 1, or unbiased estimates of these, ``(n, G)``.
        mask: Rows that count, such as the positives ``(N,)``; all when ``None``.
        survey_mask: Surveyed people who count ``(n,)``.
        num_models: As in :class:`PoweredRates`.

    >>> member = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> known = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> decisions = torch.tensor([1.0, 0.0])
    >>> powered_rates(decisions, member, decisions, member, known).rates
    tensor([1., 0.], dtype=torch.float64)
    """
    member = _masked(membership.double(), mask)
    residual = _masked(indicators.double() - survey_membership.double(), survey_mask)
    accepted = decisions.double().unsqueeze(-1) * member
    correction = survey_decisions.double().unsqueeze(-1) * residual
    shares = member.mean(0) + residual.mean(0)
    rates = (accepted.mean(0) + correction.mean(0)) / shares
    others = len(residual) - 1
    shares_out = member.mean(0) + (residual.sum(0) - residual) / others
    left_out = (accepted.mean(0) + (correction.sum(0) - correction) / others) / shares_out
    influence = (accepted - rates * member) / shares
    return PoweredRates(rates, left_out, influence, num_models)


def _masked(values: Tensor, mask: Tensor | None) -> Tensor:
    return values if mask is None else values * mask.to(values).unsqueeze(-1)
