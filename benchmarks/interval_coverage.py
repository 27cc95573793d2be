"""Coverage of the 95 % intervals of gaps on simulated populations: 2,000 samples for each line.

    python benchmarks/interval_coverage.py gap
    python benchmarks/interval_coverage.py difference

Prints how often the interval holds the true value and how often it lies above and below it. A difference
of two models is held if the test that its interval inverts does not reject it, which saves the search for
the limits. dEO is the same computation as dDP on the rows with target 1, so its counts are the positives'.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.metrics.gap_interval import RateSample, gap_interval
from fairrf_lightning.metrics.paired_interval import decision_correlation, difference_test

SAMPLES = 2000
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
)
FIVE_COUNTS = ([50] * 5, [30, 40, 50, 300, 400], [1000] * 5)
PAIRS = (
    ([0.3, 0.3], [0.2, 0.4]),
    ([0.28, 0.3], [0.2, 0.4]),
    ([0.3, 0.28], [0.2, 0.4]),
    ([0.25, 0.35], [0.2, 0.4]),
    ([0.2, 0.4], [0.25, 0.45]),
    ([0.1, 0.1], [0.3, 0.5]),
    ([0.3, 0.34], [0.3, 0.34]),
    ([0.3, 0.3], [0.3, 0.3]),
    ([0.32, 0.3], [0.3, 0.32]),
    ([0.3, 0.3, 0.3, 0.3, 0.3], [0.2, 0.25, 0.3, 0.35, 0.4]),
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
        is_rejected = difference_test(ours, theirs, correlation, 0.95)
        parts.append((is_rejected(torch.full_like(ours.gap, truth)), ours.gap - theirs.gap))
    rejected, observed = (torch.cat(found) for found in zip(*parts, strict=True))
    name = f"difference {first} - {second} n {totals} correlation {together}"
    report(name, rejected & (observed > truth), rejected & (observed <= truth))


if __name__ == "__main__":
    torch.set_num_threads(1)
    which = sys.argv[1:]
    if which not in (["gap"], ["difference"]):
        sys.exit(f"expected 'gap' or 'difference', not {' '.join(which)!r}")
    print(f"{'':<98} covers  above  below")
    if which == ["gap"]:
        for rates, totals in [*itertools.product(TWO, TWO_COUNTS), *itertools.product(FIVE, FIVE_COUNTS)]:
            one_model(rates, totals)
    else:
        for first, second in PAIRS:
            for totals, together in itertools.product(*PAIR_SAMPLES[len(first)]):
                two_models(first, second, totals, together)
