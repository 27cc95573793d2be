"""Confidence intervals for rates, and for the mean deviation between the rates of groups.

The gap between the largest and the smallest rate has an interval of its own, in ``gap_interval.py``.
The mean absolute deviation is the maximum over patterns of signs of linear contrasts of the rates. Each
contrast gets a MOVER interval (Zou & Donner 2008, Statistics in Medicine 27:1693) from the limits of the
single rates. If all these intervals hold at once, so does the interval from the largest lower to the
largest upper limit. A Bonferroni correction over the contrasts makes that happen at least at the nominal
level (as far as the single intervals do), so with many groups it is conservative.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError

MAX_SIGN_GROUPS = 12


def wilson_interval(
    successes: Tensor | float, total: Tensor | float, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return Wilson's score limits for a proportion, e.g. an accuracy or a selection rate.

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
    # at a rate of 0 or 1 rounding could put a limit on the wrong side of it
    low, high = torch.minimum(centre - half, rate), torch.maximum(centre + half, rate)
    return low.clamp(min=0), high.clamp(max=1)


def mean_interval(
    count: Tensor, total: Tensor, squares: Tensor, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return normal limits, clipped to [0, 1], for the mean of values between 0 and 1.

    Args:
        count: Number of values; fewer than 2 give NaN.
        total: Sum of the values.
        squares: Sum of the squared values.
        level: Confidence level between 0 and 1.
    """
    z = normal_quantile(level)
    mean = total / count
    variance = ((squares - total * mean) / (count - 1)).clamp(min=0)
    half = (z * (variance / count).sqrt()).masked_fill(count <= 1, torch.nan)
    return (mean - half).clamp(min=0), (mean + half).clamp(max=1)


def mean_deviation_contrasts(num_groups: int) -> Tensor:
    """Return the contrasts whose largest absolute value is the mean absolute deviation.

    With signs s the contrast is the mean over groups of ``(s_g - mean s) * rate_g``. Each pattern
    of signs comes once up to a change of all signs, and the constant pattern, which is 0, is out.

    >>> mean_deviation_contrasts(2)
    tensor([[-0.5000,  0.5000]], dtype=torch.float64)
    """
    if num_groups > MAX_SIGN_GROUPS:
        raise InputError(
            f"an interval for reduction='mean_deviation' with {num_groups} groups is too costly "
            f"(2**groups contrasts), expected at most {MAX_SIGN_GROUPS}: use reduction='gap'"
        )
    codes = torch.arange(1, 2 ** (num_groups - 1)).unsqueeze(1)
    signs = 1.0 - 2.0 * (codes >> torch.arange(num_groups) & 1).double()
    return (signs - signs.mean(dim=1, keepdim=True)) / num_groups


def bonferroni_level(level: float, comparisons: int) -> float:
    """Return the level of each of several intervals that hold together at ``level``.

    >>> bonferroni_level(0.95, 2)
    0.975
    """
    _check_level(level)
    return 1 - (1 - level) / comparisons


def contrast_interval(rates: Tensor, low: Tensor, high: Tensor, contrasts: Tensor) -> tuple[Tensor, Tensor]:
    """Return MOVER limits of linear contrasts of independent rates.

    Args:
        rates: Estimated rates ``(..., G)``.
        low: Their lower limits ``(..., G)``.
        high: Their upper limits ``(..., G)``.
        contrasts: Coefficients ``(M, G)``.

    Returns:
        Lower and upper limits ``(..., M)``.
    """
    plus, minus = contrasts.clamp(min=0).square().T, contrasts.clamp(max=0).square().T
    below, above = (rates - low).square(), (high - rates).square()
    centre = rates @ contrasts.T
    lower = centre - (below @ plus + above @ minus).sqrt()
    upper = centre + (above @ plus + below @ minus).sqrt()
    return lower, upper


def max_contrast_interval(
    rates: Tensor, low: Tensor, high: Tensor, contrasts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return limits for the largest absolute value of the contrasts.

    The limits of a single rate must be at the level ``bonferroni_level(level, M)``. With one
    contrast this is the image of its interval under the absolute value.

    Args:
        rates: Estimated rates ``(..., G)``; a NaN makes both limits NaN.
        low: Their lower limits ``(..., G)``.
        high: Their upper limits ``(..., G)``.
        contrasts: Coefficients ``(M, G)``, one of each pair of opposite signs.

    Returns:
        Lower and upper limit, each of shape ``(...)``.
    """
    lower, upper = contrast_interval(rates, low, high, contrasts)
    return torch.maximum(lower, -upper).amax(-1).clamp(min=0), torch.maximum(upper, -lower).amax(-1)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level is {level}, expected a number between 0 and 1: try level=0.95")


def normal_quantile(level: float) -> float:
    """Return the half width, in standard errors, of a normal interval at ``level``."""
    _check_level(level)
    return -NormalDist().inv_cdf((1 - level) / 2)


def student_quantile(level: float, freedom: Tensor) -> Tensor:
    """Return the half width, in standard errors, of a t interval at ``level``.

    By Hill (1970, Communications of the ACM 13:619, algorithm 396), whose constants these are. From two
    degrees of freedom the relative error is below 0.002, from three below 1e-5; below two it is wider.

    Args:
        level: Confidence level between 0 and 1.
        freedom: Degrees of freedom, at least 1; need not be whole.

    >>> print(f"{student_quantile(0.95, torch.tensor(10.0)):.4f}")
    2.2281
    """
    z, n = normal_quantile(level), freedom.double()
    a = 1 / (n - 0.5)
    b = 48 / a.square()
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * (a * math.pi / 2).sqrt() * n
    far = (d * (1 - level)) ** (2 / n)
    # Near the centre a correction of the normal quantile, in the tails an expansion of the tail itself.
    c = c + torch.where(n < 5, 0.3 * (n - 4.5) * (0.6 - z), 0.0)
    c = (((-0.05 * d * z - 5) * -z - 7) * -z - 2) * -z + b + c
    near = (((((0.4 * z**2 + 6.3) * z**2 + 36) * z**2 + 94.5) / c - z**2 - 3) / b + 1) * z
    tail = 1 / (((n + 6) / (n * far) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)
    tail = (tail * far - 1) * (n + 1) / (n + 2) + 1 / far
    squared = torch.where(far > 0.05 + a, torch.expm1(a * near.square()), tail)
    return (n * squared).sqrt().to(freedom)
