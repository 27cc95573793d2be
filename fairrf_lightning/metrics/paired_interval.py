"""A confidence interval for the difference of two models' gaps on the same rows.

As in ``gap_interval.py``, by inverting a test: a difference belongs to the interval if the observed one
is not surprising under it. Errors of the two models on the same rows go together, which the draws do,
too: in each group they have the correlation of the two models' decisions (or probabilities), which makes
the interval narrower than two separate ones would. Each model starts from the median-unbiased estimate
of its own gap, and the two move in opposite directions by the same amount to reach a supposed
difference, as far as a gap can shrink.

Which way a gap near 0 points decides whether the errors of the two models add up or cancel. Where the
sample leaves that open, some of the draws have the rates mirrored, as many as it is probable.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fairrf_lightning.metrics.gap_interval import NUM_DRAWS, RateSample, bisect, normal_draws
from fairrf_lightning.metrics.intervals import normal_quantile


def median_gap(sample: RateSample, num_draws: int = NUM_DRAWS) -> Tensor:
    """Return the gap under which the estimate is as often too large as too small, at least 0.

    Args:
        sample: Observed rates ``(..., C, G)``.
        num_draws: Draws that the median is estimated by.
    """
    normal = normal_draws(num_draws, *sample.rates.shape[-2:]).to(sample.rates)
    estimate = sample.gap

    def is_low(gap: Tensor) -> Tensor:
        drawn = sample.with_gap(gap).simulate(normal)
        larger = (drawn.amax(-1) - drawn.amin(-1)).amax(-1) >= estimate.unsqueeze(-1)
        return larger.to(gap).mean(-1) < 0.5

    return bisect(is_low, torch.zeros_like(estimate), estimate)


def gap_difference_interval(
    first: RateSample,
    second: RateSample,
    correlation: Tensor,
    level: float = 0.95,
    num_draws: int = NUM_DRAWS,
) -> tuple[Tensor, Tensor]:
    """Return limits for the first model's gap less the second's, NaN where either is.

    Args:
        first: Rates of one model ``(..., C, G)``.
        second: Rates of the other on the same rows.
        correlation: Correlation of the two models' decisions within each group ``(..., C, G)``.
        level: Confidence level between 0 and 1.
        num_draws: Draws that a tail is estimated by.
    """
    normal_quantile(level)  # refuses an impossible level
    tail = (1 - level) / 2
    shape = first.rates.shape[-2:]
    drawn = normal_draws(num_draws, 2 * shape.numel() + 2).to(first.rates)
    own, other = drawn[:, 2:].reshape(num_draws, 2, *shape).unbind(1)
    mirrored = [_mirrored(sample, drawn[:, index]) for index, sample in enumerate((first, second))]
    shared = correlation.unsqueeze(-3).clamp(-1, 1)
    paired = shared * own + (1 - shared.square()).sqrt() * other
    gaps = median_gap(first, num_draws), median_gap(second, num_draws)
    observed = first.gap - second.gap

    def share_above(difference: Tensor) -> Tensor:
        moves = (difference - (gaps[0] - gaps[1])) / 2
        gap_first = torch.maximum(gaps[0] + moves, difference).clamp(min=0)
        gap_second = gap_first - difference
        widths_first = _draw_widths(first.with_gap(gap_first), own, mirrored[0])
        widths_second = _draw_widths(second.with_gap(gap_second), paired, mirrored[1])
        return (widths_first - widths_second >= observed.unsqueeze(-1)).to(difference).mean(-1)

    def below(differences: Tensor) -> Tensor:
        above = share_above(differences)
        return torch.stack([above[0] < tail, 1 - above[1] >= tail])

    reach = 12 * (first.variances() + second.variances()).amax((-1, -2)).sqrt()
    starts = torch.stack([(observed - reach).clamp(min=-1), observed - reach / 12])
    ends = torch.stack([observed + reach / 12, (observed + reach).clamp(max=1)])
    low, high = bisect(below, starts, ends)
    unknown = (first.variances() + second.variances()).isnan().any(-1).any(-1)
    unknown = unknown | observed.isnan()
    return low.masked_fill(unknown, torch.nan), high.masked_fill(unknown, torch.nan)


def _mirrored(sample: RateSample, normal: Tensor) -> Tensor:
    """Return which draws ``(..., B)`` have the rates mirrored: as many as the gap may point that way."""
    rates, variances = sample.rates, sample.variances()
    ends = rates.argsort(-1)[..., [0, -1]]
    error = variances.gather(-1, ends).sum(-1).sqrt()
    certainty = ((rates.amax(-1) - rates.amin(-1)) / error).amax(-1)
    # Beyond two standard errors the direction is known.
    share = (torch.special.ndtr(-certainty) - 0.025).clamp(min=0)
    chosen: Tensor = torch.special.ndtr(normal) < share.unsqueeze(-1)
    return chosen


def _draw_widths(sample: RateSample, normal: Tensor, mirrored: Tensor) -> Tensor:
    rates = sample.rates
    other = replace(sample, rates=rates.amax(-1, keepdim=True) + rates.amin(-1, keepdim=True) - rates)
    widths = [
        (draws.amax(-1) - draws.amin(-1)).amax(-1)
        for draws in (sample.simulate(normal), other.simulate(normal))
    ]
    return torch.where(mirrored, widths[1], widths[0])


def decision_correlation(both: Tensor, first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    """Return the correlation of two models' decisions from counts of rows.

    Args:
        both: Rows that both decide positively.
        first: Rows that the first does.
        second: Rows that the second does.
        counts: All rows.
    """
    # A quarter row in each of the four cells: few rows that the models differ on may be none by chance.
    total = counts + 1
    rates = (first + 0.5) / total, (second + 0.5) / total
    covariance = (both + 0.25) / total - rates[0] * rates[1]
    return mean_correlation(covariance, *(rate * (1 - rate) for rate in rates))


def mean_correlation(covariance: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the correlation from a covariance and two variances; 0 where one of these is."""
    scale = (first * second).clamp(min=0).sqrt()
    return torch.where(scale > 0, covariance / scale, 0.0).clamp(-1, 1)
