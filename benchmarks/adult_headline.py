"""FairRF against the vanilla model on Adult: the table at the top of the README.

Runs `train.py fit --data adult` for some seeds (each is another split and another initialisation) and
prints the figures of the chosen checkpoint. With `--split val` it shows what the default eta was chosen by.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
METRICS = {"accuracy": "acc", "dEO": "eo_gap", "dDP": "dp_gap"}


def run(seed: int, eta: str, split: str) -> list[float]:
    """Train in a process of its own and return the metrics of the chosen checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), "fit", "--data=adult", f"--seed_everything={seed}"]
        command += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        command += [] if eta == "default" else [f"--model.eta={eta}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603 - our own script
        (path,) = Path(folder).glob("lightning_logs/*/metrics.csv")
        logged = pd.read_csv(path)
    chosen = logged.nsmallest(1, "val_objective") if split == "val" else logged.dropna(subset="test_acc")
    return [float(chosen[f"{split}_{name}"].item()) for name in METRICS.values()]


def main() -> None:
    """Print the table; the changes are against the first row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--etas", nargs="+", default=["0", "default"])
    parser.add_argument("--split", choices=["val", "test"], default="test")
    args = parser.parse_args()
    table = Table(
        title=f"Adult, {args.split} split, {args.seeds} seeds from {args.first}, mean and standard deviation"
    )
    for column in ("eta", *METRICS, "accuracy", "dEO", "dDP"):
        table.add_column(column, justify="right")
    seeds = range(args.first, args.first + args.seeds)
    first: np.ndarray | None = None
    for eta in args.etas:
        values = np.array([run(seed, eta, args.split) for seed in seeds])
        mean, std = values.mean(0), values.std(0, ddof=1)
        first = mean if first is None else first
        change = [f"{100 * (mean - first)[0]:+.2f} points"]
        change += [
            f"{100 * (now / before - 1):+.0f} %" for now, before in zip(mean[1:], first[1:], strict=True)
        ]
        table.add_row(eta, *(f"{m:.4f} +- {s:.4f}" for m, s in zip(mean, std, strict=True)), *change)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
