"""Intervals of rates and gaps against closed forms, scipy and statsmodels, and their coverage.

The coverage of two groups is exact: it adds up the probabilities of all outcomes. The slow test goes through
all pairs of rates from 0.01 to 0.99, as ``benchmarks/interval_coverage.py exact`` does. The coverage of more
groups is that of drawn samples. A small gap of two groups is covered in more than 95 %.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from benchmarks.interval_coverage import EXACT_COUNTS, outcomes
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import (
    DemographicParityGap,
    EqualizedOddsGap,
    EqualOpportunityGap,
    intervals,
    wilson_interval,
)
from fairrf_lightning.metrics.counts import Mode, Reduction
from fairrf_lightning.metrics.intervals import RateSample, _lower_share, gap_interval, student_quantile
from tests.metrics.samples import DRAWS, coverage, sample


def scipy_wilson(successes: int, total: int, level: float) -> tuple[float, float]:
    ci = stats.binomtest(successes, total).proportion_ci(level, method="wilson")
    return float(ci.low), float(ci.high)


def rows_of(cells: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Decisions and group ids with ``(successes, total)`` in each group."""
    preds = [1.0 * (i < x) for x, n in cells for i in range(n)]
    return torch.tensor(preds), torch.tensor([g for g, (_, n) in enumerate(cells) for _ in range(n)])


def dp_metric(
    cells: list[tuple[int, int]], reduction: Reduction = "gap", mode: Mode = "hard"
) -> DemographicParityGap:
    preds, groups = rows_of(cells)
    metric = DemographicParityGap(len(cells), reduction, mode)
    metric.update(preds, torch.ones_like(groups), groups)
    return metric


def as_floats(pair: tuple[Tensor, Tensor]) -> tuple[float, float]:
    return pair[0].item(), pair[1].item()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_wilson_agrees_with_scipy(level: float) -> None:
    cells = [(0, 1), (0, 30), (1, 7), (15, 30), (29, 30), (30, 30), (123, 4567)]
    successes, total = torch.tensor(cells).T
    low, high = wilson_interval(successes, total, level)
    expected = np.array([scipy_wilson(x, n, level) for x, n in cells])
    np.testing.assert_allclose(torch.stack([low, high], 1).numpy(), expected, atol=1e-12)


def test_wilson_holds_rates_of_zero_and_one_exactly() -> None:
    total = torch.arange(1, 500)
    assert (wilson_interval(torch.zeros_like(total), total)[0] == 0).all()
    assert (wilson_interval(total, total)[1] == 1).all()


def test_wilson_without_trials_is_nan() -> None:
    assert all(limit.isnan() for limit in wilson_interval(0, 0))


def score_rates(cells: list[tuple[int, int]], gap: float) -> list[float]:
    """Rates of two groups a given gap apart, each as far from its estimate as its variance tells."""
    (low, below), (high, above) = sorted(
        (x / n, ((x + 1) / (n + 2)) * (1 - (x + 1) / (n + 2)) / n) for x, n in cells
    )
    shift = gap - (high - low)
    return [low - shift * below / (above + below), high + shift * above / (above + below)]


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize(
    "cells", [[(560, 900), (480, 1000)], [(90, 400), (60, 500)], [(2000, 2500), (1100, 1800)]]
)
def test_limits_are_the_gaps_under_which_the_estimate_becomes_a_surprise(
    cells: list[tuple[int, int]], level: float
) -> None:
    low, high = as_floats(dp_metric(cells).interval(level))
    counts = [n for _, n in sorted(cells, key=lambda cell: cell[0] / cell[1])]
    estimate = abs(cells[0][0] / cells[0][1] - cells[1][0] / cells[1][1])
    rng = np.random.default_rng(0)
    for limit, sign in ((low, 1), (high, -1)):
        draws = rng.binomial(counts, score_rates(cells, limit), size=(200_000, 2)) / counts
        gaps = np.abs(draws[:, 1] - draws[:, 0])
        # continuity: half of the ties belong to either side
        tail = np.mean(sign * (gaps - estimate) > 1e-9) + np.mean(np.abs(gaps - estimate) <= 1e-9) / 2
        assert tail == pytest.approx((1 - level) / 2, abs=0.006)


def test_far_from_zero_it_is_the_normal_interval() -> None:
    low, high = as_floats(dp_metric([(30_000, 100_000), (40_000, 100_000)]).interval())
    error = math.sqrt((0.3 * 0.7 + 0.4 * 0.6) / 100_000)
    assert (low, high) == pytest.approx((0.1 - 1.96 * error, 0.1 + 1.96 * error), abs=0.05 * error)


def test_near_zero_the_lower_limit_is_one_sided() -> None:
    error = math.sqrt(2 * 0.3 * 0.7 / 10_000)
    for steps, expected in ((1.5, 0.0), (1.9, 0.0), (2.05, 0.1)):
        other = round(10_000 * (0.3 + steps * error))
        low, high = as_floats(dp_metric([(3000, 10_000), (other, 10_000)]).interval())
        assert (low > 0) == (expected > 0)
        assert high == pytest.approx((steps + 1.96) * error, rel=0.05)


def test_no_positive_decision_gives_wilsons_upper_limit() -> None:
    low, high = limits([(0, 40), (0, 4_000_000)])
    assert low == 0
    assert high == pytest.approx(scipy_wilson(0, 40, 0.95)[1], rel=0.35)


def test_the_interval_is_deterministic() -> None:
    cells = [(10, 40), (30, 50), (25, 60), (8, 9)]
    assert as_floats(dp_metric(cells).interval()) == as_floats(dp_metric(cells).interval())


def test_half_the_gap_is_the_mean_deviation_of_two_groups() -> None:
    low, high = as_floats(dp_metric([(56, 70), (48, 80)]).interval())
    halves = as_floats(dp_metric([(56, 70), (48, 80)], "mean_deviation").interval())
    assert halves == pytest.approx((low / 2, high / 2), abs=1e-12)


def brute_mean_deviation(cells: list[tuple[int, int]], level: float) -> tuple[float, float]:
    k = len(cells)
    patterns = [s for s in itertools.product([-1, 1], repeat=k) if len(set(s)) > 1]
    level = 1 - (1 - level) / (len(patterns) / 2)
    rates = np.array([x / n for x, n in cells])
    lows, highs = np.array([scipy_wilson(x, n, level) for x, n in cells]).T
    limits = []
    for signs in patterns:
        weights = (np.array(signs) - np.mean(signs)) / k
        nearer, farther = np.where(weights > 0, lows, highs), np.where(weights > 0, highs, lows)
        centre = weights @ rates
        low = centre - math.sqrt(np.sum((weights * (rates - nearer)) ** 2))
        limits.append((low, centre + math.sqrt(np.sum((weights * (rates - farther)) ** 2))))
    return max(0.0, *(low for low, _ in limits)), max(high for _, high in limits)


@pytest.mark.parametrize("num_groups", [3, 4, 5])
def test_mean_deviation_agrees_with_brute_force(num_groups: int) -> None:
    cells = [(10, 40), (30, 50), (25, 60), (8, 9), (1, 30)][:num_groups]
    metric = dp_metric(cells, "mean_deviation")
    expected = brute_mean_deviation(cells, 0.95)
    assert as_floats(metric.interval()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_groups", [2, 3, 6, 12])
def test_contrasts_reach_the_mean_deviation(num_groups: int) -> None:
    rates = torch.rand(num_groups, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    contrasts = intervals.mean_deviation_contrasts(num_groups)
    expected = (rates - rates.mean()).abs().mean()
    assert len(contrasts) == len(set(map(tuple, contrasts.tolist()))) == 2 ** (num_groups - 1) - 1
    torch.testing.assert_close((contrasts @ rates).abs().max(), expected)


def test_equalized_odds_is_wider_than_its_wider_half_alone() -> None:
    positives, negatives = [(200, 300), (100, 400)], [(50, 500), (90, 600)]
    metric = EqualizedOddsGap()
    alone = EqualOpportunityGap()
    for cells, target in ((positives, 1), (negatives, 0)):
        preds, groups = rows_of(cells)
        metric.update(preds, torch.full_like(groups, target), groups)
        alone.update(preds, torch.full_like(groups, target), groups)
    # The false positive rates differ far less; but the lower limit has to allow for two tests.
    low, high = as_floats(metric.interval())
    assert low == pytest.approx(as_floats(alone.interval(level=0.975))[0], abs=1e-6)
    assert high == pytest.approx(as_floats(alone.interval())[1], abs=1e-6)


def test_prob_mode_is_normal_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 1, 400), rng.uniform(0, 0.4, 250)
    metric = DemographicParityGap(mode="prob")
    groups = torch.tensor([0] * 400 + [1] * 250)
    metric.update(torch.from_numpy(np.concatenate([first, second])), torch.ones(650), groups)
    error = math.sqrt(first.var(ddof=1) / 400 + second.var(ddof=1) / 250)
    difference = first.mean() - second.mean()
    expected = difference - 1.96 * error, difference + 1.96 * error
    assert as_floats(metric.interval()) == pytest.approx(expected, abs=0.05 * error)


def test_limits_of_a_mean_are_clipped() -> None:
    two, half = torch.full((1, 3), 2.0, dtype=torch.float64), torch.full((1, 3), 0.5, dtype=torch.float64)
    low, high = intervals.mean_deviation_interval(RateSample.of_sums(two, 2 * half, 2 * half))
    # Scores 0 and 1 in each group: the limits of each mean are 0 and 1.
    assert (low.item(), high.item()) == pytest.approx((0, math.sqrt(6) / 9), abs=1e-12)


@pytest.mark.parametrize("mode", ["hard", "prob"])
@pytest.mark.parametrize("reduction", ["gap", "mean_deviation"])
def test_interval_contains_the_estimate_and_shrinks(reduction: Reduction, mode: Mode) -> None:
    widths = []
    for scale in (1, 4, 16):
        cells = [(3 * scale, 10 * scale), (6 * scale, 9 * scale), (2 * scale, 12 * scale)]
        metric = dp_metric(cells, reduction, mode)
        low, high = as_floats(metric.interval())
        assert 0 <= low <= metric.compute().item() <= high <= 1
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_level_widens_the_interval() -> None:
    metric = dp_metric([(30, 50), (10, 50)])
    (low, high), (lower, higher) = as_floats(metric.interval(0.8)), as_floats(metric.interval(0.99))
    assert lower < low < high < higher


@pytest.mark.parametrize("metric_class", [DemographicParityGap, EqualOpportunityGap])
def test_interval_without_data_is_nan(
    metric_class: type[DemographicParityGap | EqualOpportunityGap],
) -> None:
    metric = metric_class(3)
    assert all(limit.isnan() for limit in metric.interval())
    groups = torch.tensor([0, 1, 0, 1])
    metric.update(torch.rand(4), torch.ones(4), groups)
    assert all(limit.isnan() for limit in metric.interval())


def test_interval_in_prob_mode_needs_two_rows_of_each_group() -> None:
    metric = DemographicParityGap(mode="prob")
    metric.update(torch.tensor([0.2, 0.3, 0.4]), torch.ones(3), torch.tensor([0, 0, 1]))
    assert metric.compute().isfinite()
    assert all(limit.isnan() for limit in metric.interval())
    metric.update(torch.tensor([0.5]), torch.ones(1), torch.tensor([1]))
    assert all(limit.isfinite() for limit in metric.interval())


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, -0.1, math.nan])
def test_impossible_level_is_refused(level: float) -> None:
    with pytest.raises(InputError, match=rf"level is {level}.*0\.95"):
        DemographicParityGap().interval(level)
    with pytest.raises(InputError, match="level is"):
        wilson_interval(1, 2, level)


def test_mean_deviation_interval_is_limited_to_twelve_groups() -> None:
    with pytest.raises(InputError, match=r"13 groups.*at most 12"):
        DemographicParityGap(13, "mean_deviation").interval()
    assert all(limit.isnan() for limit in DemographicParityGap(13).interval())


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
    freedom = np.array([2, 2.5, 3, 4, 4.2, 5, 7, 11.3, 60, 1e4, 1e9])
    found = student_quantile(level, torch.from_numpy(freedom)).numpy()
    expected = np.asarray(stats.t.ppf((1 + level) / 2, freedom))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_lower_tail_has_the_share_of_absolute_values_that_are_too_small() -> None:
    z, gaps = stats.norm.ppf(0.975), np.array([0.0, 1.9, 2.0, 2.3, 3.0, 8.0])
    expected = np.where(gaps > z, stats.foldnorm.cdf(gaps - z, c=gaps), 0.0)
    found = _lower_share(torch.from_numpy(gaps), z, 0.05).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)


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


@pytest.mark.parametrize(
    ("rates", "totals"),
    [
        ([0.3, 0.2], [40, 40]),  # one standard error
        ([0.5, 0.2], [35, 45]),
        ([0.3, 0.28], [3000, 5000]),
        ([0.3, 0.3], [60, 90]),  # no gap at all
        ([0.2, 0.2, 0.2, 0.4, 0.4], [50, 50, 50, 50, 50]),  # ties
        ([0.1, 0.2, 0.4, 0.6, 0.8], [30, 40, 50, 300, 400]),
        ([0.2, 0.4, 0.4, 0.4, 0.4], [1000, 1000, 1000, 1000, 1000]),
    ],
)
def test_the_gap_is_covered(rates: list[float], totals: list[int]) -> None:
    draws = np.random.default_rng(1).binomial(totals, rates, size=(DRAWS, len(rates)))
    low, high = gap_interval(sample(draws, totals), num_draws=256)
    # A folded interval hardly misses a gap of one standard error: exactly 98.2 % in the first line.
    assert 0.93 <= coverage(low, high, max(rates) - min(rates)) <= 0.985


@pytest.mark.parametrize(
    ("positives", "negatives"),
    [
        (([0.6, 0.55], [60, 400]), ([0.06, 0.02], [3000, 5000])),  # the larger gap is known worse
        (([0.6, 0.58], [60, 400]), ([0.06, 0.02], [3000, 5000])),
        (([0.6, 0.4], [300, 300]), ([0.3, 0.1], [300, 300])),  # both gaps are the largest
    ],
)
def test_the_largest_of_two_gaps_is_covered_and_no_limit_ignores_one(
    positives: tuple[list[float], list[int]], negatives: tuple[list[float], list[int]]
) -> None:
    rng = np.random.default_rng(1)
    parts = [
        sample(rng.binomial(totals, rates, size=(DRAWS // 4, 2)), totals)
        for rates, totals in (positives, negatives)
    ]
    both = RateSample(
        torch.cat([part.rates for part in parts], 1), torch.cat([part.counts for part in parts], 1)
    )
    low, high = gap_interval(both, num_draws=256)
    truth = max(np.ptp(rates) for rates, _ in (positives, negatives))
    assert coverage(low, high, float(truth)) >= 0.93
    singles = [gap_interval(part, num_draws=256) for part in parts]
    assert torch.equal(high, torch.maximum(singles[0][1], singles[1][1]))
    assert (low <= torch.maximum(singles[0][0], singles[1][0]) + 1e-6).all()
    assert (low > 0).double().mean() > 0.95  # the gap of the negatives is beyond doubt


@pytest.mark.parametrize(
    ("sums", "counts", "squares", "expected"),
    [
        ([[1, 0, 4]], [[40, 25, 60]], None, (0.0, 0.1451)),
        ([[20, 22, 19, 30]], [[50, 50, 50, 70]], None, (0.0, 0.2)),
        ([[10, 45, 60]], [[80, 90, 75]], None, (0.5404, 0.7746)),
        ([[20, 20, 40, 40, 40]], [[50, 50, 60, 60, 60]], None, (0.0275, 0.358)),
        ([[30, 40, 52], [5, 9, 12]], [[60, 60, 60], [90, 40, 100]], None, (0.1869, 0.5079)),
        ([[12, 15, 9]], [[30, 30, 25]], [[6, 9, 4.5]], (0.0, 0.2583)),
    ],
    ids=["rare", "near 0", "clear", "ties", "two conditions", "scores"],
)
def test_limits_of_several_groups_are_those_whose_coverage_was_measured(
    sums: list[list[float]],
    counts: list[list[float]],
    squares: list[list[float]] | None,
    expected: tuple[float, float],
) -> None:
    parts = [None if part is None else torch.tensor(part).double() for part in (counts, sums, squares)]
    limits = as_floats(gap_interval(RateSample.of_sums(*parts)))  # type: ignore[arg-type]
    assert limits == pytest.approx(expected, abs=1e-3)


def test_mean_scores_of_two_groups_have_half_of_their_normal_interval() -> None:
    counts = torch.tensor([[400.0, 900.0]], dtype=torch.float64)
    rates, spread = torch.tensor([[[0.3, 0.6]], [[0.04, 0.09]]], dtype=torch.float64)
    low, high = intervals.mean_deviation_interval(RateSample(rates, counts, spread))
    # One contrast: half of the difference, with two limits of 0.02 / 2 and 0.03 / 3 standard errors.
    half = 1.959964 * (0.0001 + 0.0001) ** 0.5 / 2
    assert (float(low), float(high)) == pytest.approx((0.15 - half, 0.15 + half), abs=1e-5)
