"""Simulate how often a survey rightly leaves a model without a gap alone: python benchmarks/do_no_harm.py."""

from __future__ import annotations

import argparse

import torch

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.estimate import is_detected, linear_gap
from fairrf_lightning.survey import Survey

ROWS = 8000
# Correlations of each feature with S and with the label.
FAIR = {"a": (0.4, 0.0), "b": (0.2, 0.0), "c": (0.0, 0.5), "d": (0.0, 0.3)}
BIASED = {"a": (0.4, 0.3), "b": (0.2, 0.2), "c": (0.1, 0.5), "d": (0.0, 0.3)}


def acts(people: int, seed: int, *, biased: bool) -> bool:
    """Return whether a survey of one simulated table leads to an action."""
    data = SyntheticDataModule(
        n_rows=ROWS,
        seed=seed,
        table_seed=seed,
        bias=0.2 if biased else 0.0,
        correlations=BIASED if biased else FAIR,
    )
    batches = [batch for part in ("train", "val", "test") for batch in data.rows_of(part)]
    rows = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    chosen = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:people]
    inputs, groups, target, row = (rows[key][chosen] for key in ("inputs", "groups", "target", "row"))
    return is_detected(linear_gap(data, Survey(inputs, groups, target, row)))


def main() -> None:
    """Print the share of tables on which the rule acts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=100)
    tables = parser.parse_args().tables
    for biased in (False, True):
        for people in (100, 400, 2000):
            acted = sum(acts(people, seed, biased=biased) for seed in range(tables))
            print(f"bias {0.2 * biased:g}, {people:,} people: acted on {acted} of {tables} tables")


if __name__ == "__main__":
    main()
