"""An interval for the size of an effect that agrees with the test of whether there is one.

The statistic is chi-square with a non-centrality, the effect, which is to be bounded. An effect is in the
interval if the statistic lies between its quantiles ``lower`` and ``0.95 + lower``. ``lower`` is 0 at no
effect, so that the interval leaves out 0 exactly if the one-sided test at 5 % rejects it, and grows to 0.025:
two equal tails. Both quantiles grow with the effect, so the interval covers 95 % however ``lower`` grows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_ALPHA = 0.05
_BISECTIONS = 50


def chi_square_cdf(x: float, df: float, effect: float = 0.0) -> float:
    """Return the distribution function of the non-central chi-square distribution, a Poisson mixture.

    Args:
        x: Where.
        df: Degrees of freedom, not necessarily whole.
        effect: The non-centrality.
    """
    mean = effect / 2
    far = 10 * mean**0.5 + 30
    terms = torch.arange(max(0, int(mean - far)), int(mean + far), dtype=torch.float64)
    logs = torch.xlogy(terms, torch.tensor(mean, dtype=torch.float64)) - mean - torch.lgamma(terms + 1)
    half = torch.tensor(x / 2, dtype=torch.float64)
    return float((logs.exp() * torch.special.gammainc(terms + df / 2, half)).sum().clamp(max=1.0))


def effect_limits(x: float, df: float, spread: float = 1.0) -> tuple[float, float]:
    """Return the 95 % interval of the non-centrality.

    Args:
        x: The statistic.
        df: Its degrees of freedom.
        spread: How many times larger than without an effect the variance is at the one observed; in between
            it is taken to grow evenly, so that the test of no effect is not touched.
    """

    def below(effect: float) -> float:
        times = 1 + (spread - 1) * min(1.0, effect / x) if x else spread
        return chi_square_cdf(x / times, df, effect / times)

    critical = _root(lambda point: chi_square_cdf(point, df) - (1 - _ALPHA))

    def lower(effect: float) -> float:
        return _ALPHA / 2 * min(1.0, max(0.0, effect / critical - 1))

    low = _root(lambda effect: 1 - _ALPHA + lower(effect) - below(effect))
    high = _root(lambda effect: lower(effect) - below(effect), at_least=critical)
    return low, high


def _root(rises: Callable[[float], float], at_least: float = 0.0) -> float:
    """Return where a rising function crosses 0, or ``at_least`` if it is above 0 there."""
    if rises(at_least) >= 0:
        return at_least
    low, high = at_least, 2 * at_least + 1
    while rises(high) < 0:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return high
