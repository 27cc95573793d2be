from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import (
    DemographicParityGap,
    EqualizedOddsGap,
    EqualOpportunityGap,
    intervals,
    wilson_interval,
)
from fairrf_lightning.metrics.rate_gap import Mode, Reduction


def scipy_wilson(successes: int, total: int, level: float) -> tuple[float, float]:
    ci = stats.binomtest(successes, total).proportion_ci(level, method="wilson")
    return float(ci.low), float(ci.high)


def newcombe(x1: int, n1: int, x2: int, n2: int, level: float) -> tuple[float, float]:
    """Method 10 for the signed difference, written from the 1998 paper."""
    p1, p2 = x1 / n1, x2 / n2
    (l1, u1), (l2, u2) = scipy_wilson(x1, n1, level), scipy_wilson(x2, n2, level)
    low = p1 - p2 - math.sqrt((p1 - l1) ** 2 + (u2 - p2) ** 2)
    return low, p1 - p2 + math.sqrt((u1 - p1) ** 2 + (p2 - l2) ** 2)


def absolute(low: float, high: float) -> tuple[float, float]:
    return max(0.0, low, -high), max(high, -low)


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


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(
    "cells",
    [
        [(56, 70), (48, 80)],
        [(48, 80), (56, 70)],
        [(5, 9), (5, 11)],
        [(0, 10), (0, 20)],
        [(10, 10), (0, 20)],
        [(0, 30), (2, 30)],
    ],
)
def test_two_groups_give_newcombes_interval(cells: list[tuple[int, int]], level: float) -> None:
    expected = absolute(*newcombe(*cells[0], *cells[1], level))
    assert as_floats(dp_metric(cells).interval(level)) == pytest.approx(expected, abs=1e-12)
    halves = as_floats(dp_metric(cells, "mean_deviation").interval(level))
    assert halves == pytest.approx((expected[0] / 2, expected[1] / 2), abs=1e-12)


def test_example_of_newcombes_paper() -> None:
    low, high = as_floats(dp_metric([(56, 70), (48, 80)]).interval())
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


def test_gap_of_several_groups_is_the_extreme_of_corrected_pairs() -> None:
    cells = [(10, 40), (30, 50), (25, 60), (8, 9)]
    pairs = list(itertools.combinations(cells, 2))
    level = 1 - 0.1 / len(pairs)
    limits = [absolute(*newcombe(*a, *b, level)) for a, b in pairs]
    expected = max(low for low, _ in limits), max(high for _, high in limits)
    assert as_floats(dp_metric(cells).interval(0.9)) == pytest.approx(expected, abs=1e-12)


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


def test_equalized_odds_corrects_for_two_conditions() -> None:
    positives, negatives = [(20, 30), (10, 40)], [(5, 50), (9, 60)]
    metric = EqualizedOddsGap()
    for cells, target in ((positives, 1), (negatives, 0)):
        preds, groups = rows_of(cells)
        metric.update(preds, torch.full_like(groups, target), groups)
    limits = [absolute(*newcombe(*a, *b, 0.975)) for a, b in (positives, negatives)]
    expected = max(low for low, _ in limits), max(high for _, high in limits)
    assert as_floats(metric.interval(0.95)) == pytest.approx(expected, abs=1e-12)


def test_prob_mode_combines_normal_intervals() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 1, 40), rng.uniform(0, 0.4, 25)
    metric = DemographicParityGap(mode="prob")
    groups = torch.tensor([0] * 40 + [1] * 25)
    metric.update(torch.from_numpy(np.concatenate([first, second])), torch.ones(65), groups)
    variance = first.var(ddof=1) / 40 + second.var(ddof=1) / 25
    difference, half = first.mean() - second.mean(), stats.norm.ppf(0.975) * math.sqrt(variance)
    expected = difference - half, difference + half
    assert as_floats(metric.interval()) == pytest.approx(expected, abs=1e-12)


def test_limits_of_a_mean_are_clipped() -> None:
    preds = torch.tensor([0.0, 1.0], dtype=torch.float64)
    limits = intervals.mean_interval(torch.tensor(2.0), preds.sum(), preds.square().sum())
    assert as_floats(limits) == (0, 1)


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


def coverage(rates: list[float], totals: list[int], level: float) -> float:
    """Share of 2000 simulated data sets whose interval for the gap holds the true gap."""
    truth, total = torch.tensor(rates, dtype=torch.float64), torch.tensor(totals)
    draws = np.random.default_rng(1).binomial(totals, rates, size=(2000, len(rates)))
    successes = torch.from_numpy(draws)
    contrasts = intervals.gap_contrasts(len(rates))
    limits = wilson_interval(successes, total, intervals.bonferroni_level(level, len(contrasts)))
    low, high = intervals.max_contrast_interval(successes / total.double(), *limits, contrasts)
    gap = truth.max() - truth.min()
    return ((low <= gap) & (gap <= high)).double().mean().item()


@pytest.mark.parametrize(("rates", "totals"), [([0.3, 0.2], [300, 200]), ([0.1, 0.25], [90, 400])])
def test_coverage_is_nominal_with_two_groups(rates: list[float], totals: list[int]) -> None:
    assert 0.93 <= coverage(rates, totals, 0.95) <= 0.98


def test_coverage_is_conservative_with_many_groups() -> None:
    assert coverage([0.3, 0.3, 0.3, 0.3, 0.3], [200] * 5, 0.9) >= 0.9


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
