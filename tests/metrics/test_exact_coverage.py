"""Coverage of the interval of the gap between two groups, by the probabilities of all outcomes.

The slow test goes through all pairs of rates from 0.01 to 0.99, as ``benchmarks/interval_coverage.py exact``
does. Intervals of more groups are tried on drawn samples.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.interval_coverage import EXACT_COUNTS, outcomes
from fairrf_lightning.metrics.gap_interval import RateSample, gap_interval
from fairrf_lightning.metrics.intervals import student_quantile


def limits(cells: list[tuple[int, int]], level: float = 0.95) -> tuple[float, float]:
    """Limits for groups of ``(positives, rows)``."""
    positives, rows = torch.tensor(cells, dtype=torch.float64).T.unsqueeze(1)
    low, high = gap_interval(RateSample.of_sums(rows, positives), level)
    return low.item(), high.item()


# By inverting a test with normal draws, as before, the coverage was 83 to 92.5 % in each of these cells.
@pytest.mark.parametrize(
    ("counts", "rates"),
    [
        ((10, 10), (0.81, 0.78)),
        ((10, 400), (0.67, 0.96)),
        ((15, 60), (0.70, 0.90)),
        ((15, 60), (0.72, 0.92)),
        ((20, 20), (0.91, 0.91)),
        ((30, 30), (0.06, 0.06)),
        ((50, 50), (0.12, 0.02)),
    ],
)
def test_rare_decisions_and_unequal_groups_are_covered(
    counts: tuple[int, int], rates: tuple[float, float]
) -> None:
    assert 0.93 <= outcomes(*counts).coverage(*rates) <= 1


@pytest.mark.parametrize("counts", [counts for counts in EXACT_COUNTS if max(counts) <= 60])
def test_coarse_rates_are_covered(counts: tuple[int, int]) -> None:
    rates = np.array([0.01, 0.03, 0.1, 0.25, 0.37, 0.5, 0.66, 0.79, 0.94, 0.99])
    assert outcomes(*counts).coverages(rates).min() >= EXACT_COUNTS[counts]


@pytest.mark.slow
@pytest.mark.parametrize("counts", list(EXACT_COUNTS))
def test_all_rates_are_covered(counts: tuple[int, int]) -> None:
    assert outcomes(*counts).coverages().min() >= EXACT_COUNTS[counts]


def test_coverage_is_that_of_samples() -> None:
    # The enumeration itself, against 20,000 drawn samples.
    drawn = np.random.default_rng(0).binomial([15, 60], [0.7, 0.9], size=(20_000, 2))
    found = outcomes(15, 60)
    low, high = found.low[tuple(drawn.T)], found.high[tuple(drawn.T)]
    assert np.mean((low <= 0.2) & (high >= 0.2)) == pytest.approx(found.coverage(0.7, 0.9), abs=0.005)


@pytest.mark.parametrize("counts", [(10, 10), (15, 60), (1, 30)])
def test_the_observed_gap_is_always_inside(counts: tuple[int, int]) -> None:
    found = outcomes(*counts)
    first, second = (np.arange(n + 1) / n for n in counts)
    gaps = np.abs(first[:, None] - second)
    assert (found.low >= 0).all()
    assert (found.low <= gaps).all()
    assert (found.high >= gaps).all()
    assert (found.high <= 1).all()


def test_three_rare_positives_against_none_are_no_proof() -> None:
    assert stats.fisher_exact(np.array([[0, 30], [3, 27]])).pvalue > 0.2
    assert limits([(0, 30), (3, 30)])[0] == 0
    # Eight are: Fisher's p is below 0.005.
    assert stats.fisher_exact(np.array([[0, 30], [8, 22]])).pvalue < 0.005
    assert limits([(0, 30), (8, 30)])[0] > 0


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(
    "cells", [[(0, 30), (3, 30)], [(7, 34), (1, 34)], [(3, 15), (58, 60)], [(5, 10), (0, 10)]]
)
def test_limits_are_agresti_and_caffos_with_a_t_quantile(cells: list[tuple[int, int]], level: float) -> None:
    (a, m), (b, n) = cells
    p, q = (a + 1) / (m + 2), (b + 1) / (n + 2)
    v, w = p * (1 - p) / (m + 2), q * (1 - q) / (n + 2)
    freedom = (v + w) ** 2 / (v**2 / (m + 1) + w**2 / (n + 1))
    low, high = stats.t.interval(level, freedom, loc=p - q, scale=math.sqrt(v + w))
    folded = (
        (0.0, max(-low, high)) if low <= 0 <= high else (min(abs(low), abs(high)), max(abs(low), abs(high)))
    )
    assert limits(cells, level) == pytest.approx((folded[0], min(folded[1], 1.0)), abs=2e-6)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [  # confint_proportions_2indep(..., method="agresti-caffo", compare="diff") of statsmodels 0.15.0
        ([(0, 30), (3, 30)], (-0.22322656, 0.03572656)),
        ([(7, 34), (1, 34)], (0.01161167, 0.32172166)),
        ([(3, 15), (58, 60)], (-0.92491309, -0.50772448)),
    ],
)
def test_rates_and_errors_are_those_of_statsmodels(
    cells: list[tuple[int, int]], expected: tuple[float, float]
) -> None:
    positives, rows = torch.tensor(cells, dtype=torch.float64).T.unsqueeze(1)
    padded = RateSample.of_sums(rows, positives).with_added_rows()
    difference = (padded.rates[0, 0] - padded.rates[0, 1]).item()
    half = stats.norm.ppf(0.975) * padded.variances().sum().sqrt().item()
    assert (difference - half, difference + half) == pytest.approx(expected, abs=1e-8)
    low, high = limits(cells)
    ends = sorted(map(abs, expected))
    assert high == pytest.approx(ends[1], rel=0.04)  # the t quantile is a little larger
    assert (low == 0) == (expected[0] < 0 < expected[1])


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_student_quantile_agrees_with_scipy(level: float) -> None:
    freedom = np.array([2, 2.5, 3, 4.2, 7, 11.3, 60, 1e4, 1e9])
    found = student_quantile(level, torch.from_numpy(freedom)).numpy()
    expected = np.asarray(stats.t.ppf((1 + level) / 2, freedom))
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    np.testing.assert_allclose(found[2:], expected[2:], rtol=2e-5)


@pytest.mark.parametrize("rows", [(10, 10), (12, 80)])
def test_few_scores_are_covered(rows: tuple[int, int]) -> None:
    # Mean scores are no proportions.
    rng = np.random.default_rng(3)
    truth, samples = 0.4 - 1 / 3, 20_000
    sums = []
    for n, (a, b) in zip(rows, ((2, 3), (2, 4)), strict=True):
        scores = rng.beta(a, b, size=(samples, n))
        sums.append((scores.sum(1), np.square(scores).sum(1)))
    totals, squares = (torch.from_numpy(np.stack(part, 1)).unsqueeze(1) for part in zip(*sums, strict=True))
    counts = torch.tensor(rows, dtype=torch.float64).expand_as(totals)
    low, high = gap_interval(RateSample.of_sums(counts, totals, squares))
    assert 0.94 <= ((low <= truth) & (truth <= high)).double().mean().item() <= 0.98


def test_constant_scores_have_an_interval_without_width() -> None:
    counts = torch.tensor([[4.0, 5.0]], dtype=torch.float64)
    sample = RateSample.of_sums(counts, 0.5 * counts, 0.25 * counts)
    assert [limit.item() for limit in gap_interval(sample)] == [0, 0]


@pytest.mark.parametrize(
    ("rates", "totals"),
    [  # the previous method covered 87 to 92 % of the first four
        ([0.02] * 5, [200] * 5),
        ([0.1] * 5, [30] * 5),
        ([0.7, 0.9, 0.9], [15, 60, 200]),
        ([0.3] * 3, [10] * 3),
        ([0.01] * 7 + [0.7], [10] * 8),  # 86 % with added rows and draws beyond possible rates
    ],
)
def test_several_groups_are_covered(rates: list[float], totals: list[int]) -> None:
    drawn = np.random.default_rng(5).binomial(totals, rates, size=(4000, len(rates)))
    distinct, times = np.unique(drawn, axis=0, return_counts=True)
    positives = torch.from_numpy(distinct).double().unsqueeze(1)
    sample = RateSample.of_sums(torch.tensor(totals, dtype=torch.float64).expand_as(positives), positives)
    low, high = gap_interval(sample, num_draws=128)
    gap = max(rates) - min(rates)
    holds = ((low <= gap) & (gap <= high)).numpy()
    # The standard error of 4,000 samples is 0.004.
    assert np.average(holds, weights=times) >= 0.93
    assert ((low <= sample.gap) & (sample.gap <= high)).all()
