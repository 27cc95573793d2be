"""The interval of the difference of two gaps, against brute force and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from fairrf_lightning.metrics.gap_interval import RateSample
from fairrf_lightning.metrics.paired_interval import (
    _Contrasts,
    _paired_draws,
    decision_correlation,
    gap_difference_interval,
)


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
