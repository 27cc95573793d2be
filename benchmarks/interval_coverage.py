"""Coverage of the 95 % intervals of gaps.

    python benchmarks/interval_coverage.py exact
    python benchmarks/interval_coverage.py gap
    python benchmarks/interval_coverage.py difference

``exact`` adds up the probabilities of all outcomes of two groups, for all pairs of rates from 0.01 to 0.99.
The others draw 2,000 samples for each line, and print how often the interval holds the true value and how
often it lies above and below it. A difference of two models is held if the test that its interval inverts
does not reject it, which saves the search for the limits. dEO is the same computation as dDP on the rows
with target 1, so its counts are the positives'.
"""

from __future__ import annotations

import itertools
import sys
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from fairrf_lightning.metrics.intervals import RateSample, gap_interval
from fairrf_lightning.metrics.paired import decision_correlation, difference_test

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# Rows of two groups, and the smallest coverage that is acceptable at any pair of rates.
EXACT_COUNTS = {
    (10, 10): 0.915,
    (10, 400): 0.93,
    (15, 60): 0.925,
    (20, 20): 0.93,
    (30, 30): 0.93,
    (50, 50): 0.93,
    (200, 200): 0.93,
}
EXACT_RATES = np.arange(1, 100) / 100
SAMPLES = 2000
PAIRED_DRAWS = 512
TWO = ([0.3, 0.2], [0.5, 0.3], [0.5, 0.2], [0.05, 0.15], [0.9, 0.6], [0.32, 0.3], [0.3, 0.3])
TWO_COUNTS = ([40, 40], [30, 50], [45, 200], [400, 400], [3000, 5000])
FIVE = (
    [0.2, 0.3, 0.4, 0.35, 0.25],
    [0.2, 0.2, 0.2, 0.4, 0.4],
    [0.2, 0.2, 0.2, 0.2, 0.4],
    [0.2, 0.4, 0.4, 0.4, 0.4],
    [0.1, 0.2, 0.4, 0.6, 0.8],
    [0.3, 0.32, 0.34, 0.36, 0.38],
    [0.3, 0.3, 0.3, 0.3, 0.3],
    [0.03, 0.03, 0.03, 0.03, 0.03],
    [0.02, 0.02, 0.02, 0.02, 0.15],
)
FIVE_COUNTS = ([50] * 5, [30, 40, 50, 300, 400], [1000] * 5)
SMALL = (  # few rows, rare decisions, and many groups that tie at rates near 0 or 1
    ([0.7, 0.9, 0.9], [15, 60, 200]),
    ([0.9, 0.7, 0.9], [15, 60, 200]),
    ([0.3, 0.1, 0.1], [15, 200, 60]),
    ([0.5, 0.5, 0.5], [15, 60, 200]),
    ([0.3, 0.3, 0.3], [10, 10, 10]),
    ([0.01, 0.01, 0.6], [20, 20, 20]),
    ([0.03, 0.03, 0.03, 0.03, 0.03], [60] * 5),
    ([0.1, 0.1, 0.1, 0.1, 0.1], [30] * 5),
    ([0.02, 0.02, 0.02, 0.02, 0.02], [200] * 5),
    ([0.05, 0.3, 0.05, 0.05, 0.05], [20] * 5),
    ([0.95, 0.95, 0.99, 0.2, 0.99], [10] * 5),
    ([0.01] * 7 + [0.7], [10] * 8),
)
PAIRS = (
    ([0.3, 0.3], [0.2, 0.4]),
    ([0.5, 0.5], [0.3, 0.7]),
    ([0.05, 0.05], [0.05, 0.25]),
    ([0.28, 0.3], [0.2, 0.4]),
    ([0.3, 0.28], [0.2, 0.4]),
    ([0.25, 0.35], [0.2, 0.4]),
    ([0.2, 0.4], [0.25, 0.45]),
    ([0.1, 0.1], [0.3, 0.5]),
    ([0.3, 0.34], [0.3, 0.34]),
    ([0.3, 0.3], [0.3, 0.3]),
    ([0.32, 0.3], [0.3, 0.32]),
    ([0.3, 0.3, 0.3, 0.3, 0.3], [0.2, 0.25, 0.3, 0.35, 0.4]),
    ([0.3, 0.3, 0.3, 0.3, 0.3], [0.4, 0.35, 0.3, 0.25, 0.2]),
    ([0.28, 0.3, 0.3, 0.32, 0.35], [0.2, 0.25, 0.3, 0.35, 0.4]),
    ([0.2, 0.25, 0.3, 0.35, 0.4], [0.2, 0.25, 0.3, 0.35, 0.4]),
    ([0.2, 0.2, 0.2, 0.4, 0.4], [0.3, 0.3, 0.3, 0.3, 0.5]),
    ([0.3, 0.3, 0.3, 0.3, 0.3], [0.3, 0.3, 0.3, 0.3, 0.3]),
)
# Rows of the groups, and correlations of the two models' decisions.
PAIR_SAMPLES = {
    2: (([50, 50], [40, 300], [2000, 1000]), (0.5, 0.8)),
    5: (([50] * 5, [30, 40, 50, 300, 400], [1000] * 5), (0.5, 0.8)),
}
SEED = 2026


class Outcomes(NamedTuple):
    """All outcomes of two groups with the limits of their intervals, ``(rows + 1, rows + 1)``."""

    counts: tuple[int, int]
    low: Floats
    high: Floats

    def coverage(self, first: float, second: float) -> float:
        """Return the probability that the interval holds the gap between two rates."""
        gap = abs(first - second)
        holds = (self.low <= gap + 1e-9) & (gap - 1e-9 <= self.high)
        chances = [
            binom.pmf(np.arange(n + 1), n, rate) for n, rate in zip(self.counts, (first, second), strict=True)
        ]
        return float(chances[0] @ holds @ chances[1])

    def coverages(self, rates: Floats = EXACT_RATES) -> Floats:
        """Return the coverage of each pair of rates, ``(R, R)``."""
        return np.array([[self.coverage(first, second) for second in rates] for first in rates])


@lru_cache(maxsize=16)
def outcomes(first: int, second: int, level: float = 0.95) -> Outcomes:
    """Return the intervals of all outcomes of two groups with so many rows."""
    counts = torch.tensor([[first, second]], dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(first + 1.0), torch.arange(second + 1.0)).double().unsqueeze(1)
    parts = [
        gap_interval(RateSample.of_sums(counts.expand_as(part), part), level)
        for part in torch.split(pairs, 1024)
    ]
    low, high = (
        torch.cat(limits).reshape(first + 1, second + 1).numpy() for limits in zip(*parts, strict=True)
    )
    return Outcomes((first, second), low, high)


def exact_table() -> None:
    """Print the smallest coverages of two groups and the width of the interval."""
    print("rows of the groups | no gap: smallest | any rates: smallest | at | mean | median width")
    for counts, wanted in EXACT_COUNTS.items():
        found = outcomes(*counts)
        coverages = found.coverages()
        at = np.unravel_index(coverages.argmin(), coverages.shape)
        rates = " and ".join(f"{EXACT_RATES[place]:.2f}" for place in at)
        print(
            f"{counts[0]} and {counts[1]} | {np.diag(coverages).min():.1%} | {coverages.min():.1%} | "
            f"{rates} | {coverages.mean():.1%} | {np.median(found.high - found.low):.3f}"
            f"{'' if coverages.min() >= wanted else f'  below {wanted:.1%}'}",
            flush=True,
        )


def report(name: str, is_above: Tensor, is_below: Tensor) -> None:
    """Print one line of the table."""
    above, below = is_above.double().mean(), is_below.double().mean()
    covered = float(1 - above - below)
    mark = "" if 0.93 <= covered <= 0.97 else "  outside 93 to 97 %"
    print(f"{name:<98} {covered:6.1%} {above:6.1%} {below:6.1%}{mark}", flush=True)


def sample(successes: Tensor, totals: list[int]) -> RateSample:
    """Return observed rates ``(SAMPLES, 1, G)``."""
    counts = torch.tensor(totals, dtype=torch.float32).expand(len(successes), 1, len(totals))
    return RateSample(successes.float().unsqueeze(1) / counts, counts)


def one_model(rates: list[float], totals: list[int]) -> None:
    """Simulate the gap of one model."""
    drawn = torch.from_numpy(np.random.default_rng(SEED).binomial(totals, rates, size=(SAMPLES, len(rates))))
    parts = [gap_interval(sample(part, totals)) for part in torch.split(drawn, 500)]
    low, high = (torch.cat(limits) for limits in zip(*parts, strict=True))
    truth = max(rates) - min(rates)
    report(f"gap {rates} n {totals}", low > truth + 1e-6, high < truth - 1e-6)


def two_models(first: list[float], second: list[float], totals: list[int], together: float) -> None:
    """Simulate the difference of the gaps of two models whose decisions are correlated."""
    a, b = np.array(first), np.array(second)
    truth = float(np.ptp(a) - np.ptp(b))
    both = np.minimum(a * b + together * np.sqrt(a * (1 - a) * b * (1 - b)), np.minimum(a, b))
    cells = np.stack([both, a - both, b - both, 1 - a - b + both], -1)
    rng = np.random.default_rng(SEED)
    draws = [rng.multinomial(n, p, size=SAMPLES) for n, p in zip(totals, cells, strict=True)]
    parts = []
    for part in torch.split(torch.from_numpy(np.stack(draws, 1)), 200 // len(totals) ** 2 * 2):
        ours, theirs = (
            sample(part[..., 0] + part[..., 1], totals),
            sample(part[..., 0] + part[..., 2], totals),
        )
        counts = ours.counts
        shared = part[..., 0].float().unsqueeze(1)
        correlation = decision_correlation(shared, ours.rates * counts, theirs.rates * counts, counts)
        is_rejected = difference_test(ours, theirs, correlation, 0.95, PAIRED_DRAWS)
        parts.append((is_rejected(torch.full_like(ours.gap, truth)), ours.gap - theirs.gap))
    rejected, observed = (torch.cat(found) for found in zip(*parts, strict=True))
    name = f"difference {first} - {second} n {totals} correlation {together}"
    report(name, rejected & (observed > truth), rejected & (observed <= truth))


if __name__ == "__main__":
    torch.set_num_threads(1)
    which = sys.argv[1:]
    if which not in (["exact"], ["gap"], ["difference"]):
        sys.exit(f"expected 'exact', 'gap' or 'difference', not {' '.join(which)!r}")
    if which == ["exact"]:
        exact_table()
        sys.exit()
    print(f"{'':<98} covers  above  below")
    if which == ["gap"]:
        five = itertools.product(FIVE, FIVE_COUNTS)
        for rates, totals in [*itertools.product(TWO, TWO_COUNTS), *five, *SMALL]:
            one_model(rates, totals)
    else:
        for first, second in PAIRS:
            for totals, together in itertools.product(*PAIR_SAMPLES[len(first)]):
                two_models(first, second, totals, together)
