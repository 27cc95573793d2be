"""Coverage of the intervals of estimated gaps, over simulated surveys.

Each simulation draws rows without S and a survey from the synthetic population, fits membership on the
survey, and estimates the gaps of a fixed decision. The true gaps are those of a million people.

    python benchmarks/survey_coverage.py --surveys 1000
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.estimate import ScoredRows, estimate_gaps
from fairrf_lightning.membership import Membership
from fairrf_lightning.metrics.counts import GAPS, GroupCounts
from fairrf_lightning.metrics.intervals import wilson_interval
from fairrf_lightning.survey import Survey

POOL_ROWS = 10_000
_TRUE_ROWS = 1_000_000


class Simulation:
    """Surveys of a synthetic population, whose decisions have known gaps."""

    def __init__(self) -> None:
        self.data = SyntheticDataModule(n_rows=4000, seed=0)
        self.data.setup()
        inputs, groups, target = self.draw(_TRUE_ROWS, 0)
        counts = GroupCounts.of(self.decide(inputs), target, groups, 2)
        self.gaps = {key: float(counts.gap(gap)) for key, gap in GAPS.items()}

    def draw(self, people: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return encoded inputs, groups and labels of people."""
        features, groups, labels = self.data.population.sample(people, seed)
        encoded = self.data.encoder.transform(features)
        return encoded, torch.from_numpy(groups).long(), torch.from_numpy(labels).float()

    @staticmethod
    def decide(inputs: Tensor) -> Tensor:
        """Return decisions that depend on features of both kinds."""
        return (inputs.sum(-1) > 1).double()

    def survey(self, people: int, randomized: float, seed: int) -> Survey:
        """Draw a survey; with randomised response some answers are random."""
        inputs, groups, target = self.draw(people, seed)
        random = torch.Generator().manual_seed(seed)
        replaced = torch.rand(people, generator=random) < randomized
        coins = torch.randint(0, 2, (people,), generator=random)
        names = ("a", "b")
        return Survey(inputs, torch.where(replaced, coins, groups), target, None, names, randomized, "group")

    def covered(self, people: int, randomized: float, surveys: int) -> Iterator[dict[str, bool]]:
        """Yield, for each survey, whether the interval of each gap covers the true gap."""
        for number in range(surveys):
            inputs, _, target = self.draw(POOL_ROWS, 1 + 2 * number)
            survey = self.survey(people, randomized, 2 + 2 * number)
            membership = Membership.from_survey(survey, self.data)
            pool = ScoredRows(self.decide(inputs), inputs, target)
            found = estimate_gaps(pool, survey, self.decide(survey.inputs), membership)
            yield {key: one.low <= self.gaps[key] <= one.high for key, one in found.items()}


def main() -> None:
    """Print a table of the coverage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--surveys", type=int, default=1000)
    parser.add_argument("--people", type=int, nargs="+", default=[100, 400, 2000])
    parser.add_argument("--randomized", type=float, nargs="+", default=[0.0, 0.25])
    args = parser.parse_args()
    torch.set_num_threads(1)
    simulation = Simulation()
    shown = ", ".join(f"{GAPS[key].label} {gap:.3f}" for key, gap in simulation.gaps.items())
    print(f"True gaps: {shown}. Coverage of 95 % intervals, {args.surveys:,} surveys each.\n")
    print(f"| people | randomised | {' | '.join(gap.label for gap in GAPS.values())} |")
    print(f"|---|---|{'---|' * len(GAPS)}")
    for randomized in args.randomized:
        for people in args.people:
            found = list(simulation.covered(people, randomized, args.surveys))
            cells = []
            for key in GAPS:
                hits = float(np.sum([one[key] for one in found]))
                low, high = (100 * float(end) for end in wilson_interval(hits, args.surveys))
                cells.append(f"{100 * hits / args.surveys:.1f} % ({low:.1f} to {high:.1f})")
            print(f"| {people:,} | {randomized:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
