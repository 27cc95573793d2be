"""FairRF against the vanilla model on Adult: the table of the README.

All models train as stacks, which equal single fits. Seeds 5 to 29 played no part in the choice of the
defaults; each is another split and another initialisation. ``--split val`` shows the numbers that the
default eta was chosen by.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from fairrf_lightning.datamodules import AdultDataModule
from fairrf_lightning.experiments import Setting, run_settings

METRICS = {"accuracy": "acc", "dEO": "eo_gap", "dDP": "dp_gap"}


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over seeds and its 95 % interval (Student's t)."""
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return float(values.mean()), float(low), float(high)


def row(name: str, cells: list[str]) -> None:
    """Print a line of a Markdown table."""
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Train, and print the table; changes are against the first eta."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--first", type=int, default=5, help="The first seed.")
    parser.add_argument("--etas", type=float, nargs="+", default=[0.0, 0.6])
    parser.add_argument("--split", choices=["val", "test"], default="test")
    parser.add_argument("--workers", type=int, default=None, help="Processes; one per core by default.")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    settings = [Setting(eta=eta, beta=0.5) for eta in args.etas]
    results = run_settings(AdultDataModule, settings, seeds, max_models=20, workers=args.workers)
    columns = [f"{args.split}_{name}" for name in METRICS.values()]
    by_eta = {eta: results.loc[results["eta"] == eta, columns].to_numpy() for eta in args.etas}
    row(f"{args.split} split, {args.seeds} seeds from {args.first}", list(METRICS))
    row("---", ["---"] * len(METRICS))
    for eta, values in by_eta.items():
        means = [interval(column) for column in values.T]
        row(f"eta {eta:g}", [f"{mean:.4f} ({low:.4f} to {high:.4f})" for mean, low, high in means])
    first = by_eta[args.etas[0]]
    for eta in args.etas[1:]:
        points, *gaps = zip((by_eta[eta] - first).T, first.mean(0), strict=True)
        change = ["{:+.2f} points ({:+.2f} to {:+.2f})".format(*(100 * x for x in interval(points[0])))]
        change += [
            "{:+.0f} % ({:+.0f} to {:+.0f})".format(*(100 * x for x in interval(d / m))) for d, m in gaps
        ]
        row(f"change at eta {eta:g}", change)


if __name__ == "__main__":
    main()
