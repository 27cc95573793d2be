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
    low, high = as_floats(dp_metric([(0, 40), (0, 4_000_000)]).interval())
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
