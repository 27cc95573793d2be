"""Tango's interval against brute force, a published polynomial, and simulated samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.paired_proportions import paired_difference_interval


def brute_force(b: int, c: int, n: int, level: float) -> tuple[float, float]:
    """Invert the score test with a likelihood that is maximised numerically."""

    def log(count: int, share: float) -> float:
        return count * math.log(share) if count else 0.0

    def score(difference: float) -> float:
        def loss(share: float) -> float:
            rest = 1 - 2 * share - difference
            return -(log(b, share + difference) + log(c, share) + log(n - b - c, rest))

        smallest, largest = max(0.0, -difference), (1 - difference) / 2
        found = minimize_scalar(loss, bounds=(smallest, largest), method="bounded", options={"xatol": 1e-12})
        likely = found.x if found.x - smallest > 1e-9 else smallest  # the search stays off the bounds
        variance = (2 * likely + difference - difference**2) / n
        return float(((b - c) / n - difference) / math.sqrt(variance))

    z, estimate = norm.ppf((1 + level) / 2), (b - c) / n
    tiny = 1e-9
    low = brentq(lambda d: score(d) - z, -1 + tiny, estimate - tiny) if estimate > -1 else -1.0
    high = brentq(lambda d: score(d) + z, estimate + tiny, 1 - tiny) if estimate < 1 else 1.0
    return float(low), float(high)


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(0, 300)] * 3).filter(any), st.sampled_from([0.8, 0.95, 0.99]))
def test_limits_are_those_of_brute_force(counts: tuple[int, int, int], level: float) -> None:
    b, c, same = counts
    rows = b + c + same
    found = paired_difference_interval(b, c, rows, level)
    assert found == pytest.approx(brute_force(b, c, rows, level), abs=2e-6)


@pytest.mark.parametrize(("b", "c", "n"), [(1, 7, 21), (40, 20, 160), (3, 90, 1000)])
def test_limits_are_roots_of_a_published_polynomial(b: int, c: int, n: int) -> None:
    # Yang, Sun & Hardin 2013, Statistics in Medicine: Tango's limits without a search.
    g, d, total = norm.ppf(0.975) ** 2, b - c, b + c
    coefficients = [
        n**2 * (n / g + 1) ** 2,
        -n * d * (n / g + 1) * (4 * n / g + 1),
        2 * n * d**2 * (3 * n / g + 2) / g - n**2 * (total / g + 1),
        n * d * (2 * total / g + 1) - d**3 * (4 * n / g + 1) / g,
        d**2 * (d**2 / g - total) / g,
    ]
    roots = np.sort(np.roots(coefficients).real)
    assert paired_difference_interval(b, c, n) == pytest.approx((roots[0], roots[-1]), abs=1e-9)


@pytest.mark.parametrize("rows", [1, 50, 10**7, 10**12])
def test_models_that_never_differ_still_have_an_interval(rows: int) -> None:
    z = norm.ppf(0.975) ** 2
    assert paired_difference_interval(0, 0, rows) == pytest.approx((-z / (rows + z), z / (rows + z)))


def test_many_rows_give_the_normal_interval() -> None:
    b, c, n = 3 * 10**9, 2 * 10**9, 10**11
    half = norm.ppf(0.975) * math.sqrt((b + c) / n - ((b - c) / n) ** 2) / math.sqrt(n)
    assert paired_difference_interval(b, c, n) == pytest.approx((0.01 - half, 0.01 + half), abs=1e-10)


def test_the_limits_stay_within_what_is_possible() -> None:
    assert paired_difference_interval(5, 0, 5)[1] == 1
    assert paired_difference_interval(0, 5, 5)[0] == -1
    assert all(map(math.isnan, paired_difference_interval(0, 0, 0)))
    with pytest.raises(InputError, match="level is 95"):
        paired_difference_interval(1, 2, 10, 95)


@pytest.mark.parametrize("shares", [(0.04, 0.02), (0.1, 0.1), (0.3, 0.05)])
@pytest.mark.parametrize("rows", [100, 2000])
def test_coverage_is_near_the_level(shares: tuple[float, float], rows: int) -> None:
    rng = np.random.default_rng(0)
    samples = rng.multinomial(rows, [*shares, 1 - sum(shares)], size=2000)
    limits = [paired_difference_interval(int(b), int(c), rows) for b, c, _ in samples]
    covered = [low <= shares[0] - shares[1] <= high for low, high in limits]
    assert 0.93 <= np.mean(covered) <= 0.97
