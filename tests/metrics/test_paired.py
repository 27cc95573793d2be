"""Intervals of the difference of two models, against brute force, published formulas and drawn samples."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.intervals import RateSample
from fairrf_lightning.metrics.paired import (
    _Contrasts,
    _paired_draws,
    decision_correlation,
    difference_test,
    gap_difference_interval,
    mean_correlation,
    paired_difference_interval,
)
from tests.metrics.samples import DRAWS, sample


def random_pair(conditions: int, groups: int, rows: int = 400) -> tuple[RateSample, RateSample, Tensor]:
    generator = torch.Generator().manual_seed(conditions * 100 + groups)
    counts = torch.randint(rows // 2, rows, (conditions, groups), generator=generator).double()
    cells = torch.rand(conditions, groups, 4, generator=generator, dtype=torch.float64)
    both, one, other, _ = ((cells / cells.sum(-1, keepdim=True)) * counts[..., None]).unbind(-1)
    ours, theirs = both + one, both + other
    return (
        RateSample(ours / counts, counts),
        RateSample(theirs / counts, counts),
        decision_correlation(both, ours, theirs, counts),
    )


@pytest.mark.parametrize(("conditions", "groups"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_errors_and_statistic_equal_brute_force_over_all_contrasts(conditions: int, groups: int) -> None:
    first, second, correlation = random_pair(conditions, groups)
    size = conditions * groups
    variances = np.concatenate([sample.variances().numpy().ravel() for sample in (first, second)])
    covariance = np.diag(variances)
    shared = correlation.numpy().ravel() * np.sqrt(variances[:size] * variances[size:])
    covariance[np.arange(size), size + np.arange(size)] = shared
    covariance[size + np.arange(size), np.arange(size)] = shared
    rates = np.concatenate([sample.rates.numpy().ravel() for sample in (first, second)])

    difference = 0.05
    pairs = [
        (condition * groups + top, condition * groups + bottom)
        for condition in range(conditions)
        for top, bottom in itertools.permutations(range(groups), 2)
    ]
    table = np.empty((len(pairs), len(pairs)))
    for (i, p), (j, q) in itertools.product(enumerate(pairs), repeat=2):
        weights = np.zeros(2 * size)
        weights[p[0]], weights[p[1]] = 1, -1
        weights[size + q[0]], weights[size + q[1]] = -1, 1
        table[i, j] = (weights @ rates - difference) / np.sqrt(weights @ covariance @ weights)
    expected = (table.min(1).max() + table.max(0).min()) / 2

    contrasts = _Contrasts.plausible(first, second, correlation)
    found = contrasts.statistic(
        first.rates[None],
        second.rates[None],
        torch.tensor(difference, dtype=torch.float64),
        contrasts.errors(first, second),
    )
    assert found.item() == pytest.approx(expected, abs=1e-9)
    assert (found.item() > 0) == ((first.gap - second.gap).item() > difference)


def test_draws_have_the_correlation_and_no_order() -> None:
    correlation = torch.tensor([[0.8, 0.0, -0.5]], dtype=torch.float64)
    first, second = _paired_draws(correlation, 4096)
    for group, expected in enumerate(correlation[0].tolist()):
        together = torch.stack([first[:, 0, group], second[:, 0, group]])
        assert torch.corrcoef(together)[0, 1].item() == pytest.approx(expected, abs=0.01)
        assert together.std(-1).tolist() == pytest.approx([1, 1], abs=0.01)
    assert torch.equal(first[:2048], second[2048:])


def test_clear_gaps_have_nearly_the_interval_of_paired_proportions() -> None:
    counts = torch.full((1, 2), 20_000.0, dtype=torch.float64)
    ours = torch.tensor([[0.30, 0.40]], dtype=torch.float64)
    theirs = torch.tensor([[0.20, 0.45]], dtype=torch.float64)
    correlation = torch.full((1, 2), 0.6, dtype=torch.float64)
    low, high = gap_difference_interval(
        RateSample(ours, counts), RateSample(theirs, counts), correlation, num_draws=4096
    )
    variances = [rates * (1 - rates) / counts for rates in (ours, theirs)]
    squared = variances[0] + variances[1] - 2 * correlation * (variances[0] * variances[1]).sqrt()
    error = squared.sum().sqrt().item()
    assert (low + high).item() / 2 == pytest.approx(-0.15, abs=0.1 * error)
    # A little wider than 1.96 errors either way: less than 5 % is spent.
    assert 1.96 * error < (high - low).item() / 2 < 2.15 * error


@pytest.mark.parametrize(("conditions", "groups"), [(1, 2), (1, 5), (2, 3), (1, 12)])
def test_exchanging_the_models_mirrors_the_interval(conditions: int, groups: int) -> None:
    first, second, correlation = random_pair(conditions, groups)
    low, high = gap_difference_interval(first, second, correlation)
    mirrored = gap_difference_interval(second, first, correlation)
    assert low < first.gap - second.gap < high
    assert [-mirrored[1].item(), -mirrored[0].item()] == pytest.approx([low.item(), high.item()], abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "counts", "correlation", "expected"),
    [
        ([[30, 60]], [[40, 55]], [[100, 100]], 0.55, (0.0124, 0.2758)),
        ([[3, 60]], [[5, 40]], [[20, 200]], 0.4, (-0.2476, 0.4567)),
        ([[10, 45, 60]], [[20, 40, 50]], [[80, 90, 75]], 0.5, (0.1147, 0.4004)),
        ([[30, 32]], [[33, 31]], [[100, 100]], 0.8, (-0.1611, 0.1636)),
        ([[50, 60]], [[2, 10]], [[100, 100]], 0.3, (-0.1264, 0.1652)),
        (
            [[30, 40, 52], [5, 9, 12]],
            [[32, 38, 40], [8, 9, 12]],
            [[60, 60, 60], [90, 40, 100]],
            0.4,
            (0.0491, 0.4782),
        ),
    ],
    ids=[
        "clear",
        "unequal sizes",
        "three groups",
        "both near 0",
        "larger gap less certain",
        "two conditions",
    ],
)
def test_limits_are_those_whose_coverage_was_measured(
    first: list[list[int]],
    second: list[list[int]],
    counts: list[list[int]],
    correlation: float,
    expected: tuple[float, float],
) -> None:
    rows = torch.tensor(counts).double()
    models = [RateSample.of_sums(rows, torch.tensor(sums).double()) for sums in (first, second)]
    limits = gap_difference_interval(models[0], models[1], torch.full_like(rows, correlation))
    assert [limit.item() for limit in limits] == pytest.approx(expected, abs=1e-3)


def test_a_constant_model_has_no_correlation_with_another() -> None:
    covariance, variances = torch.tensor([0.0, 0.03]), torch.tensor([0.0, 0.09])
    assert mean_correlation(covariance, variances, torch.tensor(0.04)).tolist() == pytest.approx([0.0, 0.5])


def test_correlation_of_decisions_is_that_of_the_table_with_half_a_row_in_each_cell() -> None:
    both, one, other, neither = 20, 7, 4, 30
    first, second = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])
    cells = np.array([both, one, other, neither]) + 0.5
    covariance = np.cov(first, second, aweights=cells, ddof=0)
    expected = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
    counts = [torch.tensor(float(n)) for n in (both, both + one, both + other, both + one + other + neither)]
    assert decision_correlation(*counts).item() == pytest.approx(expected, abs=1e-6)


def test_a_model_against_itself_shows_no_difference() -> None:
    first, _, _ = random_pair(1, 3)
    positives = first.rates * first.counts
    correlation = decision_correlation(positives, positives, positives, first.counts)
    low, high = gap_difference_interval(first, first, correlation)
    assert low < 0 < high
    assert high - low < 0.05


def test_probabilities_and_unknown_rates() -> None:
    first, second, correlation = random_pair(1, 3)
    spread = torch.full_like(first.rates, 0.02)
    ours, theirs = (RateSample(sample.rates, sample.counts, spread) for sample in (first, second))
    low, high = gap_difference_interval(ours, theirs, correlation)
    hard = gap_difference_interval(first, second, correlation)
    assert 0 < high - low < hard[1] - hard[0]
    unknown = RateSample(torch.full_like(first.rates, torch.nan), first.counts)
    assert all(limit.isnan() for limit in gap_difference_interval(unknown, second, correlation))


def differences(
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]], totals: list[int]
) -> tuple[RateSample, RateSample, Tensor]:
    ours = sample(drawn[..., 0] + drawn[..., 1], totals)
    theirs = sample(drawn[..., 0] + drawn[..., 2], totals)
    together, counts = torch.from_numpy(drawn[..., 0]).float().unsqueeze(1), ours.counts
    return ours, theirs, decision_correlation(together, ours.rates * counts, theirs.rates * counts, counts)


def draw_pairs(first: list[float], second: list[float], totals: list[int], draws: int) -> Any:
    a, b = np.array(first), np.array(second)
    both = a * b + 0.5 * np.sqrt(a * (1 - a) * b * (1 - b))
    cells = np.stack([both, a - both, b - both, 1 - a - b + both], -1)
    rng = np.random.default_rng(1)
    return np.stack([rng.multinomial(n, p, size=draws) for n, p in zip(totals, cells, strict=True)], 1)


def test_the_interval_holds_the_differences_that_its_test_does_not_reject() -> None:
    pair = differences(draw_pairs([0.3, 0.28], [0.2, 0.4], [200, 100], 200), [200, 100])
    low, high = gap_difference_interval(*pair, num_draws=256)
    is_rejected = difference_test(*pair, level=0.95, num_draws=256)
    for difference in (-0.3, -0.18, -0.1, 0.0):
        inside = (low <= difference) & (difference <= high)
        assert (inside == ~is_rejected(torch.full_like(low, difference))).double().mean() > 0.98


@pytest.mark.parametrize(
    ("first", "second", "totals"),
    [
        ([0.3, 0.3], [0.2, 0.4], [50, 50]),  # a fair model against an unfair one
        ([0.3, 0.3], [0.2, 0.4], [2000, 1000]),
        ([0.2, 0.4], [0.25, 0.45], [50, 50]),
        ([0.25, 0.35], [0.2, 0.4], [2000, 1000]),
        ([0.3, 0.28], [0.2, 0.4], [2000, 1000]),
        ([0.3, 0.3, 0.3, 0.3, 0.3], [0.2, 0.25, 0.3, 0.35, 0.4], [1000, 1000, 1000, 1000, 1000]),
    ],
)
def test_the_difference_of_two_models_is_covered(
    first: list[float], second: list[float], totals: list[int]
) -> None:
    # By the test that the interval inverts, which saves the search for the limits.
    truth = float(np.ptp(first) - np.ptp(second))
    # Five groups have a hundred times the contrasts of two.
    draws = DRAWS if len(totals) == 2 else DRAWS // 4
    held = []
    for part in np.array_split(draw_pairs(first, second, totals, draws), 20):
        pair = differences(part, totals)
        held.append(~difference_test(*pair, level=0.95, num_draws=256)(torch.full_like(pair[0].gap, truth)))
    assert 0.93 <= torch.cat(held).double().mean().item() <= 0.98


def brute_force_limits(b: int, c: int, n: int, level: float) -> tuple[float, float]:
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
    assert found == pytest.approx(brute_force_limits(b, c, rows, level), abs=2e-6)


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
def test_the_difference_of_two_proportions_is_covered(shares: tuple[float, float], rows: int) -> None:
    rng = np.random.default_rng(0)
    samples = rng.multinomial(rows, [*shares, 1 - sum(shares)], size=2000)
    limits = [paired_difference_interval(int(b), int(c), rows) for b, c, _ in samples]
    covered = [low <= shares[0] - shares[1] <= high for low, high in limits]
    assert 0.93 <= np.mean(covered) <= 0.97
