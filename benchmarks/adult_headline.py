"""FairRF against the vanilla model on Adult: the claim at the top of the README.

Runs `train.py fit --data adult` with its defaults, and with `--model.eta 0`, for five seeds (each seed
is another split and another initialisation) and prints the mean of the test split's figures.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
METRICS = {"accuracy": "test_acc", "dEO": "test_eo_gap", "dDP": "test_dp_gap"}


def run(seed: int, options: list[str]) -> list[float]:
    """Train in a process of its own and return the test metrics."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), "fit", "--data", "adult", f"--seed_everything={seed}"]
        quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        subprocess.run([*command, *quiet, *options], cwd=folder, check=True, capture_output=True)  # noqa: S603
        (path,) = Path(folder).glob("lightning_logs/*/metrics.csv")
        with path.open(encoding="utf-8") as file:
            (row,) = (row for row in csv.DictReader(file) if row["test_acc"])
        return [float(row[name]) for name in METRICS.values()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    vanilla = np.array([run(seed, ["--model.eta=0"]) for seed in seeds])
    fair = np.array([run(seed, []) for seed in seeds])
    table = Table(title=f"Adult, test split, {len(seeds)} seeds, mean and standard deviation")
    for column in ("", *METRICS):
        table.add_column(column, justify="right")
    for name, values in (("vanilla (eta 0)", vanilla), ("FairRF (default)", fair)):
        cells = zip(values.mean(0), values.std(0, ddof=1), strict=True)
        table.add_row(name, *(f"{mean:.4f} +- {std:.4f}" for mean, std in cells))
    change = fair.mean(0) - vanilla.mean(0)
    gaps = 100 * change[1:] / vanilla.mean(0)[1:]
    table.add_row("change", f"{100 * change[0]:+.2f} points", *(f"{gap:+.0f} %" for gap in gaps))
    Console().print(table)


if __name__ == "__main__":
    main()
