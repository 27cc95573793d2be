"""Confidence intervals for the difference of two models on the same rows, in gaps and in accuracy.

**Gaps.** A gap is the largest of the differences ``rate - rate`` of two groups ("contrasts"), so the first
gap minus the second is ``max over p, min over q`` of contrast p of the first model minus contrast q of the
second. Each pair has its own standard error: errors of two models on the same rows cancel if both contrasts
compare the same groups, and add up if they are opposed. So a supposed difference is tested by the same
maximum of minima of ``(p - q - difference) / error``. The plain difference of the gaps would not do: its
error depends on the direction of a gap near 0, which is unknown.

As in ``intervals.py`` the interval inverts this test, and the distribution of its statistic under a
supposed difference is simulated: normal draws, correlated within each group as the two models' decisions
(or probabilities) are. The two supposed gaps are estimates, moved in opposite directions by the same
amount, as far as a gap can shrink, until they have the supposed difference. Observed gaps are biased
upwards, so the estimates are smaller, most of all that of the less certain gap (in standard errors). As
they are not the true gaps, slightly less than ``1 - level`` is spent (``_SPENT``). Variances of few rows
are uncertain, so the draws are widened as in ``intervals.py``. These constants were set on simulated
populations; ``benchmarks/interval_coverage.py`` measures the coverage.

Two gaps that are both near 0 are the exception: there the coverage is higher than ``level``. The null
hypothesis is two lines that cross there, as in tests of mediation, where usual tests hardly ever reject and
exact ones are absurd (van Garderen & van Giersbergen 2022, arXiv:2012.11342).

**Accuracy.** Tango's score interval (1998, Statistics in Medicine 17:891) for two proportions on the same
rows: a difference is in it if the observed one is not surprising under it, with the variance of the most
likely shares that have this difference. It is valid for few rows, and where the models never differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairrf_lightning.metrics.intervals import (
    RateSample,
    bisect,
    normal_draws,
    normal_quantile,
    student_quantile,
)

PAIRED_DRAWS = 2048  # half of them mirror the others with the models exchanged
_SPENT = 0.7  # of the error probability
_REACHED_CERTAIN, _REACHED_UNCERTAIN = 0.5, 0.2  # how often draws reach the observed gap
_MAX_CONTRASTS = 24  # of a model: all of five groups under one condition
_TINY = 1e-18
_PROPORTION_BISECTIONS = 60


@dataclass(frozen=True)
class _Contrasts:
    """The contrasts of two models that may be their gaps.

    Args:
        first: Positions of the upper and the lower rate of each contrast ``(..., K, 2)`` among ``C * G``.
        second: The same for the second model.
        correlation: Correlation of the models' errors at each position ``(..., C * G)``.
    """

    first: Tensor
    second: Tensor
    correlation: Tensor

    @classmethod
    def plausible(cls, first: RateSample, second: RateSample, correlation: Tensor) -> _Contrasts:
        """Choose the contrasts that are largest with two standard errors added."""
        return cls(_largest_contrasts(first), _largest_contrasts(second), correlation.flatten(-2))

    def errors(self, first: RateSample, second: RateSample) -> Tensor:
        """Return the standard errors ``(..., K, K)`` of each contrast minus each other."""
        variances = [sample.variances().flatten(-2) for sample in (first, second)]
        shared = self.correlation * (variances[0] * variances[1]).sqrt()
        own = [
            _gather(variance, places).sum(-1)
            for variance, places in zip(variances, (self.first, self.second), strict=True)
        ]
        p, q = self.first.unsqueeze(-2), self.second.unsqueeze(-3)
        at_p = _gather(shared, self.first).unsqueeze(-2)
        covariance = (at_p * ((p == q).to(at_p) - (p == q.flip(-1)).to(at_p))).sum(-1)
        squared = own[0].unsqueeze(-1) + own[1].unsqueeze(-2) - 2 * covariance
        return squared.clamp(min=_TINY).sqrt()

    def statistic(self, first: Tensor, second: Tensor, difference: Tensor, errors: Tensor) -> Tensor:
        """Return the distance from the supposed difference in standard errors, positive if it is larger.

        The maximum over p of the minimum over q and the minimum over q of the maximum over p have the same
        sign. Their mean treats both models alike: exchanging them only changes its sign.

        Args:
            first: Rates of the first model ``(..., B, C, G)``.
            second: Rates of the second model.
            difference: The supposed difference ``(...)``.
            errors: ``(..., K, K)``.
        """
        p, q = (
            top - bottom
            for top, bottom in (
                _gather(rates.flatten(-2), places.unsqueeze(-3)).unbind(-1)
                for rates, places in ((first, self.first), (second, self.second))
            )
        )
        distance = p.unsqueeze(-1) - (q + difference[..., None, None]).unsqueeze(-2)
        distance = distance.div_(errors.unsqueeze(-3))
        return (distance.amin(-1).amax(-1) + distance.amax(-2).amin(-1)) / 2


def gap_difference_interval(
    first: RateSample,
    second: RateSample,
    correlation: Tensor,
    level: float = 0.95,
    num_draws: int = PAIRED_DRAWS,
) -> tuple[Tensor, Tensor]:
    """Return limits for the first model's gap minus the second's, NaN where either is.

    Args:
        first: Rates of one model ``(..., C, G)``.
        second: Rates of the other on the same rows.
        correlation: Correlation of the two models' decisions within each group ``(..., C, G)``.
        level: Confidence level between 0 and 1.
        num_draws: Number of draws.
    """
    is_rejected = difference_test(first, second, correlation, level, num_draws)

    def below(differences: Tensor) -> Tensor:
        rejected = is_rejected(differences)
        return torch.stack([rejected[0], ~rejected[1]])

    observed = first.gap - second.gap
    reach = 12 * (first.variances() + second.variances()).amax((-1, -2)).sqrt()
    starts = torch.stack([(observed - reach).clamp(min=-1), observed])
    low, high = bisect(below, starts, torch.stack([observed, (observed + reach).clamp(max=1)]))
    unknown = (first.variances() + second.variances()).isnan().any(-1).any(-1)
    unknown = unknown | observed.isnan()
    return low.masked_fill(unknown, torch.nan), high.masked_fill(unknown, torch.nan)


def difference_test(
    first: RateSample, second: RateSample, correlation: Tensor, level: float, num_draws: int = PAIRED_DRAWS
) -> Callable[[Tensor], Tensor]:
    """Return the test that :func:`gap_difference_interval` inverts: whether a difference is rejected."""
    wider = torch.maximum(_widening(first, level), _widening(second, level))[..., None, None, None]
    draws = [normal * wider for normal in _paired_draws(correlation, num_draws)]
    contrasts = _Contrasts.plausible(first, second, correlation)
    observed_errors = contrasts.errors(first, second)
    gaps = _estimated_gaps(first, second, num_draws)

    def is_rejected(difference: Tensor) -> Tensor:
        gap = (gaps[0] + gaps[1] + difference) / 2
        gap = torch.maximum(gap, difference).clamp(min=0)
        supposed = first.with_gap(gap), second.with_gap(gap - difference)
        observed = contrasts.statistic(
            first.rates.unsqueeze(-3), second.rates.unsqueeze(-3), difference, observed_errors
        )
        drawn = contrasts.statistic(
            supposed[0].simulate(draws[0]),
            supposed[1].simulate(draws[1]),
            difference,
            contrasts.errors(*supposed),
        )
        probability = (drawn.abs() >= observed.abs()).to(difference).mean(-1)
        return probability < _SPENT * (1 - level)

    return is_rejected


def _widening(sample: RateSample, level: float) -> Tensor:
    """Return the ratio ``(...)`` of the t quantile to the normal one, the largest over conditions."""
    padded = sample.with_added_rows()
    quantile = student_quantile(level, padded.freedom(padded.extremes(1.0)))
    return (quantile / normal_quantile(level)).to(sample.rates).amax(-1)


def _paired_draws(correlation: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
    """Return standard normal draws ``(..., B, C, G)`` for each model, with a correlation ``(..., C, G)``.

    Each draw is repeated with the models exchanged, so that the interval does not depend on their order.
    """
    normal = normal_draws(num_draws // 2, 2, *correlation.shape[-2:]).to(correlation)
    share = ((1 + correlation.clamp(-1, 1)) / 2).unsqueeze(-3)
    together, apart = share.sqrt() * normal[:, 0], (1 - share).sqrt() * normal[:, 1]
    first, second = together + apart, together - apart
    return torch.cat([first, second], -3), torch.cat([second, first], -3)


def _estimated_gaps(first: RateSample, second: RateSample, num_draws: int) -> tuple[Tensor, Tensor]:
    """Return gaps under which draws reach the observed ones as often as ``_REACHED_*`` say."""
    certainty = [sample.gap / (_extreme_error(sample) + _TINY) for sample in (first, second)]
    shares = [
        torch.where(is_less, _REACHED_UNCERTAIN, _REACHED_CERTAIN).to(sample.rates)
        for is_less, sample in ((certainty[0] <= certainty[1], first), (certainty[1] <= certainty[0], second))
    ]
    return _gap_reached(first, shares[0], num_draws), _gap_reached(second, shares[1], num_draws)


def _gap_reached(sample: RateSample, share: Tensor, num_draws: int) -> Tensor:
    """Return the gap, at least 0, under which a share of the draws is as large as the observed gap."""
    normal = normal_draws(num_draws, *sample.rates.shape[-2:]).to(sample.rates)
    estimate = sample.gap

    def is_low(gap: Tensor) -> Tensor:
        drawn = replace(sample, rates=sample.with_gap(gap).simulate(normal)).gap
        return (drawn >= estimate.unsqueeze(-1)).to(gap).mean(-1) < share

    return bisect(is_low, torch.zeros_like(estimate), estimate)


def _extreme_error(sample: RateSample) -> Tensor:
    """Return the standard error of the widest condition's gap."""
    widths = sample.rates.amax(-1) - sample.rates.amin(-1)
    errors = sample.variances().gather(-1, sample.extremes(0.0)).sum(-1).sqrt()
    return errors.gather(-1, widths.argmax(-1, keepdim=True)).squeeze(-1)


def _largest_contrasts(sample: RateSample) -> Tensor:
    """Return the positions ``(..., K, 2)`` of the upper and lower rates of the largest contrasts."""
    conditions, groups = sample.rates.shape[-2:]
    places = torch.arange(conditions * groups).reshape(conditions, groups)
    pairs = torch.cat([torch.stack([p.repeat_interleave(groups), p.repeat(groups)], -1) for p in places])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rates, variances = (part.flatten(-2)[..., pairs] for part in (sample.rates, sample.variances()))
    reach = rates[..., 0] - rates[..., 1] + 2 * variances.sum(-1).sqrt()
    largest = reach.topk(min(_MAX_CONTRASTS, len(pairs)), -1).indices
    return pairs[largest]


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """Return ``values[..., places]`` for positions ``(..., K, 2)`` that differ between samples."""
    flat = places.flatten(-2)
    flat = flat[(None,) * (values.dim() - flat.dim())]
    taken = torch.take_along_dim(values, flat, -1)
    return taken.reshape(*taken.shape[:-1], -1, 2)


def decision_correlation(both: Tensor, first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    """Return the correlation of two models' decisions from counts of rows.

    Args:
        both: Rows that both models accept.
        first: Rows that the first model accepts.
        second: Rows that the second model accepts.
        counts: All rows.
    """
    # Half a row is added to each of the four cells (Agresti & Min 2005, Statistics in Medicine 24:729):
    # a cell may be empty by chance.
    total = counts + 2
    rates = (first + 1) / total, (second + 1) / total
    covariance = (both + 0.5) / total - rates[0] * rates[1]
    return mean_correlation(covariance, *(rate * (1 - rate) for rate in rates))


def mean_correlation(covariance: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the correlation from a covariance and two variances; 0 where a variance is 0."""
    scale = (first * second).clamp(min=0).sqrt()
    return torch.where(scale > 0, covariance / scale, 0.0).clamp(-1, 1)


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
    for _ in range(_PROPORTION_BISECTIONS):
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
    # The form of the solution without a difference of nearly equal numbers.
    return -2 * constant / (linear + root) if linear > 0 else (root - linear) / (4 * rows)
