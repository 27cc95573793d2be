"""Search for rates that make the interval wider than `sample-size` promises for any rates.

    python benchmarks/labels_worst_case.py

For each number of groups: random patterns of rates near one half, then random steps from the hardest one
found. The width is that of the mean interval at the rows that `sample-size` asks for, relative to the
width asked for.
"""

from __future__ import annotations

import numpy as np

from fairrf_lightning.audit.sample_size import mean_width, worst_case

WIDTH = 0.05
TRIES = 200


def hardest(shares: list[float], seed: int = 0) -> tuple[int, float, list[float]]:
    """Return the rows asked for, the largest relative width found and its rates."""
    rng = np.random.default_rng(seed)
    rows = worst_case(WIDTH, shares)
    errors = 0.5 / np.sqrt(rows * np.array(shares))
    worst, at = 0.0, np.full(len(shares), 0.5)
    for turn in range(TRIES):
        if turn < TRIES // 3:
            ends = rng.uniform(0, 0.25) * rng.choice([-1, 0, 1], len(shares))
            rates = 0.5 + ends + 0.7 * errors * rng.normal(size=len(shares)) * rng.integers(0, 2)
        else:
            rates = at + errors * rng.normal(size=len(shares))
        rates = rates.clip(0.02, 0.98)
        width = mean_width(rows, shares, rates.tolist(), 0.95) / WIDTH
        if width > worst:
            worst, at = width, rates
    return rows, worst, at.round(3).tolist()


if __name__ == "__main__":
    unequal = [[0.1, 0.9], [0.1, 0.1, 0.8], [0.05, 0.1, 0.15, 0.2, 0.5], [0.05, 0.05, 0.05, 0.05, 0.8]]
    for shares in [*([1 / groups] * groups for groups in (2, 3, 5, 10)), *unequal]:
        rows, worst, rates = hardest(shares)
        named = ", ".join(f"{share:.2f}" for share in shares)
        print(
            f"shares {named}: {rows:,} rows, width at most {worst:.3f} of that asked for, at {rates}",
            flush=True,
        )
