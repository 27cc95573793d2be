"""A confidence interval for the gap between groups, from counts alone.

**Two groups.** Decisions have the interval of Agresti & Caffo (2000, The American Statistician 54:280): one
positive and one negative row are added to each group, then it is the usual interval of a difference, with
the variances ``rate (1 - rate) / rows``. The quantile is that of Student's t with Welch's degrees of
freedom (cf. Pan 2002, Computational Statistics & Data Analysis 40:143), which only few rows notice. Mean
scores have Welch's interval without added rows. A gap has no sign: an interval ``[low, high]`` of the
difference that holds 0 becomes ``[0, max(-low, high)]``.

**More groups.** The largest of several noisy differences is too large on average, most of all where groups
tie. So the same rates and variances are used, but a gap belongs to the interval if the estimate is not
surprising under it:

- The rates that belong to a supposed gap are the observed ones with two groups drawn together or apart,
  each in proportion to its variance, and the others clipped to what lies between: the extremes for a
  smaller gap, and for a larger one those that are farthest out one standard error further.
- Under these rates the estimate's distribution is simulated with normal draws, made wider by the ratio of
  the t quantile to the normal one. The draws are a fixed Sobol sequence, so the result is deterministic.
- Both tails share ``1 - level``. A gap cannot be negative: where the supposed gap is small against its
  error all of it goes to estimates that are too large, so that a true gap of 0 is covered at the
  nominal level; then the share moves smoothly to one half for each (cf. Feldman & Cousins 1998,
  Physical Review D 57:3873).

The test inversion along one line of supposed rates is known as hybrid resampling (Chuang & Lai 2000,
Statistica Sinica 10:1). ``benchmarks/interval_coverage.py`` measures the coverage, for two groups exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from fairrf_lightning.metrics.intervals import bonferroni_level, normal_quantile, student_quantile

NUM_DRAWS = 1024
_BISECTIONS = 12
_REACH = 12.0  # standard errors of the noisiest rate between the estimate and any limit
_SMOOTH = 1.0  # rows added to either side where a variance is estimated, which then is never 0
_TINY = 1e-9


@dataclass(frozen=True)
class RateSample:
    """Observed rates of G groups under C conditions, such as target 1 and target 0.

    Args:
        rates: Shares of positive decisions, or means of probabilities, ``(..., C, G)``.
        counts: Rows behind each of them.
        spread: Variance of a single row; ``None`` if rows are 0 or 1, whose variance follows from the rate.
    """

    rates: Tensor
    counts: Tensor
    spread: Tensor | None = None

    @classmethod
    def of_sums(cls, counts: Tensor, sums: Tensor, squares: Tensor | None = None) -> RateSample:
        """Make a sample from sums over rows, and for probabilities the sums of their squares."""
        rates = sums / counts
        if squares is None:
            return cls(rates, counts)
        spread = ((squares - sums * rates) / (counts - 1)).clamp(min=0)
        return cls(rates, counts, spread.masked_fill(counts <= 1, torch.nan))

    def by_condition(self) -> RateSample:
        """Return each condition as a sample of its own, ``(..., C, 1, G)``."""
        spread = None if self.spread is None else self.spread.unsqueeze(-2)
        return RateSample(self.rates.unsqueeze(-2), self.counts.unsqueeze(-2), spread)

    @property
    def gap(self) -> Tensor:
        """The largest gap of the conditions, ``(...)``."""
        return (self.rates.amax(-1) - self.rates.amin(-1)).amax(-1)

    def variances(self) -> Tensor:
        """Return the variances of the rates."""
        if self.spread is not None:
            return self.spread / self.counts
        smooth = (self.rates * self.counts + _SMOOTH) / (self.counts + 2 * _SMOOTH)
        return smooth * (1 - smooth) / self.counts

    def with_added_rows(self) -> RateSample:
        """Return decisions with one positive and one negative row added to each group; scores as they are.

        The variance of a row then is known, and never 0.
        """
        if self.spread is not None:
            return self
        counts = self.counts + 2
        rates = (self.rates * self.counts + 1) / counts
        return RateSample(rates, counts, rates * (1 - rates))

    def freedom(self, ends: Tensor) -> Tensor:
        """Return Welch's degrees of freedom ``(..., C)`` for a difference of two groups.

        Args:
            ends: Places of the two groups, ``(2,)`` or ``(..., C, 2)``.
        """
        ends = ends.expand(*self.rates.shape[:-1], 2)
        variances = self.variances().double().gather(-1, ends)
        parts = variances.square() / (self.counts.expand_as(self.rates).gather(-1, ends) - 1)
        return (variances.sum(-1).square() / parts.sum(-1)).nan_to_num(1.0).clamp(min=1)

    def simulate(self, normal: Tensor) -> Tensor:
        """Return draws of the rates ``(..., B, C, G)`` from standard normal ones of that shape."""
        rates, deviation = self.rates.unsqueeze(-3), self.variances().sqrt().unsqueeze(-3)
        draws = rates + deviation * normal
        if self.spread is not None:
            return draws
        skew = ((1 - 2 * self.rates) / (6 * self.counts)).unsqueeze(-3)
        return (draws + skew * (normal.square() - 1)).clamp(0, 1)

    def with_gap(self, gap: Tensor) -> RateSample:
        """Return the sample moved so that its largest gap is ``gap`` ``(...)``."""
        widths = self.rates.amax(-1) - self.rates.amin(-1)
        shift = gap.unsqueeze(-1) - widths
        # Only the condition with the largest gap is drawn apart; all that are too wide are drawn together.
        widest = widths == widths.amax(-1, keepdim=True)
        together, _ = self._moved(self.extremes(0.0), gap)
        apart, limits = self._moved(self.extremes(1.0), gap)
        apart = apart.scatter(-1, self.extremes(1.0).expand_as(limits), limits)
        rates = torch.where((shift < 0).unsqueeze(-1), together, self.rates)
        rates = torch.where(((shift > 0) & widest).unsqueeze(-1), apart, rates)
        return replace(self, rates=rates)

    def extremes(self, errors: float) -> Tensor:
        """Return the lowest and the highest group of each condition ``(..., C, 2)``.

        Args:
            errors: So many standard errors count in favour of a noisy rate, which is the first to be
                farther out than it seems; of equal rates the noisiest is taken in any case.
        """
        reach = (errors + _TINY) * self.variances().sqrt()
        highest = (self.rates + reach).argmax(-1, keepdim=True)
        lowest = (self.rates - reach).scatter(-1, highest, torch.inf).argmin(-1, keepdim=True)
        return torch.cat([lowest, highest], -1)

    def _moved(self, ends: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rates clipped between the two groups moved to a distance of ``gap``, and these."""
        bottom, top = self.rates.gather(-1, ends).unbind(-1)
        below, above = (self.variances() + _TINY).gather(-1, ends).unbind(-1)
        shift = gap.unsqueeze(-1) - (top - bottom)
        share = above / (above + below)
        top, bottom = top + shift * share, bottom - shift * (1 - share)
        back = (bottom.clamp(min=0) - bottom) - (top - top.clamp(max=1))
        limits = torch.stack([bottom + back, top + back], -1)
        return torch.minimum(torch.maximum(self.rates, limits[..., :1]), limits[..., 1:]), limits


def gap_interval(
    sample: RateSample, level: float = 0.95, num_draws: int = NUM_DRAWS
) -> tuple[Tensor, Tensor]:
    """Return limits for the largest gap of the conditions, NaN where a rate or a variance is.

    Rates of some conditions are known better than those of others, so the largest gap alone says
    little: each condition has its own interval, and the largest limits are taken. For the lower one
    they share the error probability (Bonferroni); the upper one is missed only if that of the condition
    with the largest gap is. The observed gap always lies within the limits.

    Args:
        sample: Observed rates ``(..., C, G)``; leading dimensions are independent samples.
        level: Confidence level between 0 and 1.
        num_draws: Draws that a tail is estimated by, for three or more groups.

    >>> sample = RateSample.of_sums(torch.tensor([[30.0, 30.0]]), torch.tensor([[0.0, 3.0]]))
    >>> print("{:.3f} {:.3f}".format(*gap_interval(sample)))
    0.000 0.227
    """
    conditions = sample.rates.shape[-2]
    each = sample.by_condition()
    low, high = _one_condition(each, level, num_draws)
    if conditions > 1:
        low, _ = _one_condition(each, bonferroni_level(level, conditions), num_draws)
    unknown = (sample.rates + sample.variances()).isnan().any(-1).any(-1)
    return low.amax(-1).masked_fill(unknown, torch.nan), high.amax(-1).masked_fill(unknown, torch.nan)


def _one_condition(sample: RateSample, level: float, num_draws: int) -> tuple[Tensor, Tensor]:
    """Return the limits of :func:`gap_interval` for rates ``(..., 1, G)``."""
    padded = sample.with_added_rows()
    if sample.rates.shape[-1] == 2:
        low, high = _two_groups(padded, level)
    else:
        smallest = torch.zeros_like(padded.counts) if sample.spread is not None else 1 / padded.counts
        low, high = _several_groups(padded, smallest, level, num_draws)
    # The added rows draw the rates together, so the observed gap may be just outside.
    return torch.minimum(low, sample.gap), torch.maximum(high.clamp(max=1), sample.gap)


def _two_groups(sample: RateSample, level: float) -> tuple[Tensor, Tensor]:
    """Return the limits of the signed difference, folded: an interval across 0 becomes one from 0."""
    error = sample.variances().sum(-1).sqrt().squeeze(-1)
    half = student_quantile(level, sample.freedom(torch.tensor([0, 1]))).squeeze(-1).to(error) * error
    return (sample.gap - half).clamp(min=0), sample.gap + half


def _several_groups(
    sample: RateSample, smallest: Tensor, level: float, num_draws: int
) -> tuple[Tensor, Tensor]:
    """Invert the test of each possible range of the rates.

    Args:
        sample: Rates with known variances.
        smallest: The smallest rate that each group can have; the largest is as far from 1.
        level: Confidence level.
        num_draws: Draws that a tail is estimated by.
    """
    z, alpha = normal_quantile(level), 1 - level
    estimate, ends = sample.gap, sample.extremes(1.0)
    wider = student_quantile(level, sample.freedom(ends)).to(estimate)[..., None, :, None] / z
    normal = normal_draws(num_draws, *sample.rates.shape[-2:]).to(estimate) * wider
    error = (sample.variances().gather(-1, ends).sum(-1).squeeze(-1) + _TINY).sqrt()
    bottom = smallest.unsqueeze(-3)

    def is_below(gaps: Tensor) -> Tensor:
        """Whether the first is a gap below the lower limit, and the second one below the upper limit."""
        drawn = sample.with_gap(gaps).simulate(normal)
        # Draws beyond the possible rates make the ranges wider, those moved to them narrower. Each limit
        # has the draws that leave it on the safe side.
        drawn = torch.stack([drawn[0], drawn[1].maximum(bottom).minimum(1 - bottom)])
        above = (replace(sample, rates=drawn).gap >= estimate.unsqueeze(-1)).to(gaps).mean(-1)
        lower_share = _lower_share(gaps / error, z, alpha)
        return torch.stack([above[0] < (alpha - lower_share)[0], (1 - above >= lower_share)[1]])

    reach = _REACH * sample.variances().amax((-1, -2)).sqrt()
    starts = torch.stack([(estimate - reach).clamp(min=0), estimate])
    low, high = bisect(is_below, starts, torch.stack([estimate, (estimate + reach).clamp(max=1)]))
    zero_is_below, _ = is_below(torch.zeros_like(starts))
    return torch.where(zero_is_below, low, 0.0), high


def _lower_share(gap: Tensor, z: float, alpha: float) -> Tensor:
    """Return the share of the lower tail for a gap in standard errors: 0, then up to alpha / 2.

    It is the probability of an absolute value of a normal variable below ``gap - z``.
    """
    share = alpha / 2 - torch.special.ndtr(z - 2 * gap)
    return torch.where(gap > z, share, 0.0)


def bisect(below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Return where ``below`` turns from true to false between ``low`` and ``high``, element-wise."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_below = below(middle)
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (low + high) / 2


@lru_cache(maxsize=16)
def normal_draws(num_draws: int, *shape: int) -> Tensor:
    """Return standard normal draws ``(num_draws, *shape)`` from a fixed Sobol sequence."""
    dimension = torch.Size(shape).numel()
    engine = SobolEngine(dimension, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    uniform = engine.draw(num_draws, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    normal: Tensor = torch.special.ndtri(uniform)
    return normal.reshape(num_draws, *shape)
