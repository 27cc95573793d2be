"""95 % intervals hold the true gap in 93 to 97 % of 2,000 samples; the full table is in benchmarks/."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fairrf_lightning.metrics.gap_interval import RateSample, gap_interval
from fairrf_lightning.metrics.paired_interval import decision_correlation, gap_difference_interval

DRAWS = 2000


def coverage(low: Tensor, high: Tensor, truth: float) -> float:
    return ((low <= truth + 1e-6) & (truth - 1e-6 <= high)).double().mean().item()


def sample(successes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], totals: list[int]) -> RateSample:
    counts = torch.tensor(totals, dtype=torch.float32).expand(len(successes), 1, len(totals))
    return RateSample(torch.from_numpy(successes).float().unsqueeze(1) / counts, counts)


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
    assert 0.93 <= coverage(low, high, max(rates) - min(rates)) <= 0.97


@pytest.mark.parametrize(
    ("first", "second", "totals"),
    [
        ([0.3, 0.3], [0.2, 0.4], [2000, 1000]),  # a fair model against an unfair one
        ([0.2, 0.4], [0.25, 0.45], [50, 50]),
        ([0.25, 0.35], [0.2, 0.4], [2000, 1000]),
        ([0.2, 0.25, 0.3, 0.35, 0.4], [0.2, 0.25, 0.3, 0.35, 0.4], [1000, 1000, 1000, 1000, 1000]),
    ],
)
def test_the_difference_of_two_models_is_covered(
    first: list[float], second: list[float], totals: list[int]
) -> None:
    a, b = np.array(first), np.array(second)
    both = a * b + 0.5 * np.sqrt(a * (1 - a) * b * (1 - b))
    cells = np.stack([both, a - both, b - both, 1 - a - b + both], -1)
    rng = np.random.default_rng(1)
    drawn = np.stack([rng.multinomial(n, p, size=DRAWS) for n, p in zip(totals, cells, strict=True)], 1)
    ours, theirs = (
        sample(drawn[..., 0] + drawn[..., 1], totals),
        sample(drawn[..., 0] + drawn[..., 2], totals),
    )
    together = torch.from_numpy(drawn[..., 0]).float().unsqueeze(1)
    counts = ours.counts
    correlation = decision_correlation(together, ours.rates * counts, theirs.rates * counts, counts)
    low, high = gap_difference_interval(ours, theirs, correlation, num_draws=128)
    assert 0.93 <= coverage(low, high, float(np.ptp(a) - np.ptp(b))) <= 0.97
