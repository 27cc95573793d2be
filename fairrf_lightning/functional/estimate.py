"""Prediction-powered estimates of group rates: few people whose group is known, many whose group is not.

``E[d S_k]`` is estimated by the mean of ``d g_k`` over many rows plus the mean of ``d (S_k - g_k)`` over the
surveyed people (Angelopoulos et al. 2023). The second mean corrects the errors of membership g, so the
estimate is consistent whatever g is; a good g makes it more precise. g must not have seen the answer of the
person it is evaluated at (cross-fitting, Zrnic and Candes 2024).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PoweredRates(NamedTuple):
    """Estimated rates of G groups.

    Args:
        rates: Rates ``(G,)``.
        left_out: Rates without each of the n surveyed people, ``(n, G)``, for the jackknife.
        influence: First-order influence of each of the N other rows on the rates, ``(N, G)``.
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
        num_models: Number of cross-fitted models behind ``survey_membership``.

    >>> import torch
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
