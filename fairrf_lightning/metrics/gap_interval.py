"""A confidence interval for the gap between groups, by inverting a test of each possible gap.

The estimated gap is the largest difference of several noisy rates, so it is too large on average, most
of all where groups tie and where the true gap is near 0; no estimate plus or minus an error mends that.
Here a gap belongs to the interval if the estimate is not surprising under it:

- The rates that belong to a supposed gap are the observed ones with two groups drawn together or apart,
  each in proportion to its variance, and the others clipped to what lies between: the extremes for a
  smaller gap, and for a larger one those that are farthest out one standard error further. With two
  groups these are the rates of the score test.
- Under these rates the estimate's distribution is simulated: normal draws with the binomial variance
  of the *supposed* rates, as in Wilson's interval, and a Cornish-Fisher correction of the skewness.
  The draws are a fixed Sobol sequence, so the result is deterministic.
- Both tails share ``1 - level``. A gap cannot be negative: where the supposed gap is small against its
  error all of it goes to estimates that are too large, so that a true gap of 0 is covered at the
  nominal level, too; then the share moves smoothly to one half for each (cf. Feldman & Cousins 1998,
  Physical Review D 57:3873).

The test inversion along one line of supposed rates is known as hybrid resampling (Chuang & Lai 2000,
Statistica Sinica 10:1). ``benchmarks/interval_coverage.py`` measures the coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from fairrf_lightning.metrics.intervals import normal_quantile

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

    Rates of some conditions are known better than those of others, so the largest gap alone tells
    little: each condition has its own interval, and the largest limits are taken. For the lower one
    they share the error probability (Bonferroni); the upper one is missed only if that of the condition
    with the largest gap is.

    Args:
        sample: Observed rates ``(..., C, G)``; leading dimensions are independent samples.
        level: Confidence level between 0 and 1.
        num_draws: Draws that a tail is estimated by.
    """
    conditions = sample.rates.shape[-2]
    each = sample.by_condition()
    low, high = _one_condition(each, level, num_draws)
    if conditions > 1:
        low, _ = _one_condition(each, 1 - (1 - level) / conditions, num_draws)
    return low.amax(-1), high.amax(-1)


def _one_condition(sample: RateSample, level: float, num_draws: int) -> tuple[Tensor, Tensor]:
    """Return the limits of :func:`gap_interval` for rates ``(..., 1, G)``."""
    z, alpha = normal_quantile(level), 1 - level
    normal = normal_draws(num_draws, *sample.rates.shape[-2:]).to(sample.rates)
    estimate = sample.gap
    ends = sample.extremes(1.0)

    def tails(gap: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much more than their shares the upper and the lower tail hold."""
        moved = sample.with_gap(gap)
        drawn = replace(sample, rates=moved.simulate(normal)).gap
        above = (drawn >= estimate.unsqueeze(-1)).to(gap).mean(-1)
        variances = moved.variances().expand_as(moved.rates)
        at_ends = variances.gather(-1, ends.expand(*variances.shape[:-1], 2)).sum(-1).squeeze(-1)
        lower_share = _lower_share(gap / (at_ends + _TINY).sqrt(), z, alpha)
        return above - (alpha - lower_share), (1 - above) - lower_share

    def below(gaps: Tensor) -> Tensor:
        upper_tail, lower_tail = tails(gaps)
        return torch.stack([upper_tail[0] < 0, lower_tail[1] >= 0])

    reach = _REACH * sample.variances().amax((-1, -2)).sqrt()
    starts = torch.stack([(estimate - reach).clamp(min=0), estimate])
    low, high = bisect(below, starts, torch.stack([estimate, (estimate + reach).clamp(max=1)]))
    low = torch.where(tails(torch.zeros_like(estimate))[0] >= 0, 0.0, low)
    unknown = (sample.rates + sample.variances()).isnan().any(-1).any(-1)
    return low.masked_fill(unknown, torch.nan), high.masked_fill(unknown, torch.nan)


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
