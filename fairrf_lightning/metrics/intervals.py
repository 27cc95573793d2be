"""Confidence intervals for rates, and for the gap between the rates of groups, from counts alone.

**Two groups.** Decisions have the interval of Agresti & Caffo (2000, The American Statistician 54:280): one
positive and one negative row are added to each group, then it is the usual interval of a difference, with
the variances ``rate (1 - rate) / rows``. The quantile is that of Student's t with Welch's degrees of
freedom (cf. Pan 2002, Computational Statistics & Data Analysis 40:143), which matters for few rows only.
Mean scores have Welch's interval without added rows. A gap has no sign: an interval ``[low, high]`` of the
difference that contains 0 becomes ``[0, max(-low, high)]``.

**More groups.** The largest of several noisy differences is biased upwards, most of all where groups tie.
So the same rates and variances are used, but the interval inverts a test: a supposed gap belongs to it
unless the estimate is surprising under that gap.

- The rates under a supposed gap are the observed ones with two groups moved together or apart, each in
  proportion to its variance, and the others clipped to the range between them. A smaller gap moves the
  observed extremes; a larger one moves the groups that are farthest out after adding one standard error.
- The distribution of the estimate under these rates is simulated with normal draws, widened by the ratio of
  the t quantile to the normal one. The draws are a fixed Sobol sequence, so the result is deterministic.
- Both tails share ``1 - level``. A gap cannot be negative: where the supposed gap is small relative to its
  error, all of it goes to estimates that are too large, so that a true gap of 0 is covered at the
  nominal level; then the share moves smoothly to one half for each tail (cf. Feldman & Cousins 1998,
  Physical Review D 57:3873).

Test inversion along one line of supposed rates is known as hybrid resampling (Chuang & Lai 2000,
Statistica Sinica 10:1). ``benchmarks/interval_coverage.py`` measures the coverage, for two groups exactly.

**Mean deviation.** It is the maximum of linear contrasts of the rates, one per pattern of signs. Each
contrast gets a MOVER interval (Zou & Donner 2008, Statistics in Medicine 27:1693) from the limits of the
single rates, Bonferroni-corrected over the contrasts. With many groups this is conservative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.quasirandom import SobolEngine

from fairrf_lightning.errors import InputError

NUM_DRAWS = 1024
_BISECTIONS = 12
_MAX_REACH = 12.0  # standard errors of the noisiest rate between the estimate and any limit
_SMOOTH = 1.0  # rows added to either side where a variance is estimated, which is then never 0
_TINY = 1e-9
_MAX_SIGN_GROUPS = 12


def wilson_interval(
    successes: Tensor | float, total: Tensor | float, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return Wilson's score limits for a proportion, such as an accuracy or a selection rate.

    Args:
        successes: Number of successes, any shape.
        total: Number of trials, of a shape that broadcasts; 0 trials give NaN.
        level: Confidence level between 0 and 1.

    >>> low, high = wilson_interval(8, 10)
    >>> print(f"{low:.3f} {high:.3f}")
    0.490 0.943
    """
    z = normal_quantile(level)
    x, n = torch.as_tensor(successes).double(), torch.as_tensor(total).double()
    rate = x / n
    centre = (x + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * (x * (n - x) / n + z**2 / 4).sqrt()
    # At a rate of 0 or 1, rounding could put a limit on the wrong side of it.
    low, high = torch.minimum(centre - half, rate), torch.maximum(centre + half, rate)
    return low.clamp(min=0), high.clamp(max=1)


def normal_quantile(level: float) -> float:
    """Return the half width, in standard errors, of a normal interval at ``level``."""
    _check_level(level)
    return -NormalDist().inv_cdf((1 - level) / 2)


def student_quantile(level: float, freedom: Tensor) -> Tensor:
    """Return the half width, in standard errors, of a t interval at ``level``.

    >>> print(f"{student_quantile(0.95, torch.tensor(10.0)):.4f}")
    2.2281
    """
    _check_level(level)
    degrees = freedom.detach().cpu().double().clamp(max=1e9).numpy()  # beyond, t is normal
    from scipy.special import stdtrit  # noqa: PLC0415 - slow, and few metrics need it

    return torch.as_tensor(stdtrit(degrees, (1 + level) / 2)).to(freedom)


def bonferroni_level(level: float, comparisons: int) -> float:
    """Return the level of each of several intervals that hold together at ``level``.

    >>> bonferroni_level(0.95, 2)
    0.975
    """
    _check_level(level)
    return 1 - (1 - level) / comparisons


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level is {level}, expected a number between 0 and 1: try level=0.95")


@dataclass(frozen=True)
class RateSample:
    """Observed rates of G groups under C conditions, such as target 1 and target 0.

    Args:
        rates: Shares of positive decisions, or means of probabilities, ``(..., C, G)``.
        counts: Rows behind each of them.
        spread: Variance of a single row; ``None`` for 0/1 decisions, whose variance follows from the rate.
    """

    rates: Tensor
    counts: Tensor
    spread: Tensor | None = None

    @classmethod
    def of_sums(cls, counts: Tensor, sums: Tensor, squares: Tensor | None = None) -> RateSample:
        """Build a sample from sums over rows; for probabilities, pass the sums of their squares as well."""
        rates = sums / counts
        if squares is None:
            return cls(rates, counts)
        spread = ((squares - sums * rates) / (counts - 1)).clamp(min=0)
        return cls(rates, counts, spread.masked_fill(counts <= 1, torch.nan))

    def join_classes(self) -> RateSample:
        """Return samples ``(..., M, C, G)`` of ``M`` classes as one with ``M C`` conditions."""
        spread = None if self.spread is None else self.spread.flatten(-3, -2)
        return RateSample(self.rates.flatten(-3, -2), self.counts.flatten(-3, -2), spread)

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
        """Return decisions with one positive and one negative row added to each group; scores unchanged.

        The variance of a row is then known, and never 0.
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
        # Only the condition with the largest gap is moved apart; all that are too wide are moved together.
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
            errors: Number of standard errors added to each rate, because a noisy rate may be farther out
                than observed. Among equal rates the noisiest is taken in any case.
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

    Each condition has its own interval, because some rates are more certain than others, and the largest
    limits are taken. The lower limits share the error probability (Bonferroni); the upper limit misses only
    if that of the condition with the largest gap does. The observed gap always lies within the limits.

    Args:
        sample: Observed rates ``(..., C, G)``; leading dimensions are independent samples.
        level: Confidence level between 0 and 1.
        num_draws: Number of draws for three or more groups.

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
    # The added rows shrink the gap, so the observed one may be just outside.
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
        smallest: The smallest possible rate of each group; the largest is as far from 1.
        level: Confidence level.
        num_draws: Number of draws.
    """
    z, alpha = normal_quantile(level), 1 - level
    estimate, ends = sample.gap, sample.extremes(1.0)
    wider = student_quantile(level, sample.freedom(ends)).to(estimate)[..., None, :, None] / z
    normal = normal_draws(num_draws, *sample.rates.shape[-2:]).to(estimate) * wider
    error = (sample.variances().gather(-1, ends).sum(-1).squeeze(-1) + _TINY).sqrt()
    bottom = smallest.unsqueeze(-3)

    def is_below(gaps: Tensor) -> Tensor:
        """Return whether the first gap is below the lower limit, and the second below the upper limit."""
        drawn = sample.with_gap(gaps).simulate(normal)
        # Draws beyond the possible rates widen the range, clipped ones narrow it: each limit uses the
        # draws that keep it conservative.
        drawn = torch.stack([drawn[0], drawn[1].maximum(bottom).minimum(1 - bottom)])
        above = (replace(sample, rates=drawn).gap >= estimate.unsqueeze(-1)).to(gaps).mean(-1)
        lower_share = _lower_share(gaps / error, z, alpha)
        return torch.stack([above[0] < (alpha - lower_share)[0], (1 - above >= lower_share)[1]])

    reach = _MAX_REACH * sample.variances().amax((-1, -2)).sqrt()
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


def mean_deviation_interval(sample: RateSample, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return conservative limits for the largest mean deviation of the conditions, NaN where a rate is.

    Args:
        sample: Observed rates ``(..., C, G)``.
        level: Confidence level between 0 and 1.

    Raises:
        InputError: If there are more than twelve groups.
    """
    conditions, groups = sample.rates.shape[-2:]
    contrasts = mean_deviation_contrasts(groups)
    low, high = _rate_limits(sample, bonferroni_level(level, conditions * len(contrasts)))
    below, above = (sample.rates - low).square(), (high - sample.rates).square()
    plus, minus = contrasts.clamp(min=0).square().T, contrasts.clamp(max=0).square().T
    centre = sample.rates @ contrasts.T
    lower = centre - (below @ plus + above @ minus).sqrt()
    upper = centre + (above @ plus + below @ minus).sqrt()
    # A contrast stands for its opposite as well: fold the interval at 0.
    lower, upper = torch.maximum(lower, -upper).clamp(min=0), torch.maximum(upper, -lower)
    return lower.amax((-1, -2)), upper.amax((-1, -2))


def _rate_limits(sample: RateSample, level: float) -> tuple[Tensor, Tensor]:
    """Return limits of each rate: Wilson's for decisions, normal ones within [0, 1] for mean scores."""
    if sample.spread is None:
        return wilson_interval((sample.rates * sample.counts).round(), sample.counts, level)
    half = normal_quantile(level) * (sample.spread / sample.counts).sqrt()
    return (sample.rates - half).clamp(min=0), (sample.rates + half).clamp(max=1)


def mean_deviation_contrasts(num_groups: int) -> Tensor:
    """Return the contrasts ``(M, G)`` whose largest absolute value is the mean absolute deviation.

    With signs s the contrast is the mean over groups of ``(s_g - mean s) * rate_g``. Patterns that differ
    by a change of all signs are listed once; the constant pattern, which gives 0, is left out.

    >>> mean_deviation_contrasts(2)
    tensor([[-0.5000,  0.5000]], dtype=torch.float64)
    """
    if num_groups > _MAX_SIGN_GROUPS:
        raise InputError(
            f"an interval for reduction='mean_deviation' with {num_groups} groups is too costly "
            f"(2**groups contrasts), expected at most {_MAX_SIGN_GROUPS}: use reduction='gap'"
        )
    codes = torch.arange(1, 2 ** (num_groups - 1)).unsqueeze(1)
    signs = 1.0 - 2.0 * (codes >> torch.arange(num_groups) & 1).double()
    return (signs - signs.mean(dim=1, keepdim=True)) / num_groups


def gap_bounds(
    counts: NDArray[np.int64], positives: NDArray[np.int64], unknown: int, unknown_positives: int
) -> tuple[float, float]:
    """Return the smallest and the largest gap over all memberships of rows whose group is unknown.

    Each such row may belong to any of the groups compared, or to another group. Let group g have n_g known
    rows, x_g of them accepted, and let u_1 rows of unknown group be accepted and u_0 rejected.

    - The largest gap gives all u_1 to one group and all u_0 to another: the maximum over pairs of
      ``(x_i + u_1) / (n_i + u_1) - x_j / (n_j + u_0)``.
    - The smallest gap is ``high - low``, or 0 if these cross. ``low`` is the largest rate that u_1 rows can
      lift all groups to, ``sum_g (low n_g - x_g)^+ <= (1 - low) u_1``; ``high`` is the smallest rate that u_0
      rows can lower them to, ``sum_g (x_g - high n_g)^+ <= high u_0``. Rows count as divisible; with whole
      rows the smallest gap is larger by less than one row of a group.

    Args:
        counts: Rows of each group ``(G,)``.
        positives: Accepted rows of each group.
        unknown: Rows of unknown group.
        unknown_positives: Accepted rows of unknown group.

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
    """Return the largest rate that all groups reach with ``available`` positives.

    The groups with the lowest rates get them, up to a common rate; with too many groups it would be higher.
    """
    order = np.argsort(x / n)
    rates = (available + np.cumsum(x[order])) / (available + np.cumsum(n[order]))
    return float(rates.min(initial=1.0))
