"""What ``train.py sweep`` prints at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from fairrf_lightning.experiments.pareto import pareto_front
from fairrf_lightning.sweep.objective import ACCURACY, Objective
from fairrf_lightning.sweep.space import PARAMETERS


def print_report(
    frame: pd.DataFrame,
    chosen: pd.Series,
    objective: Objective,
    *,
    max_accuracy_loss: float,
    config: Path,
    files: Sequence[Path],
) -> None:
    """Print the Pareto front of the validation rows, the chosen setting with its rule, and the files."""
    console = Console()
    console.print(_table(frame, chosen, objective.name))
    uses = "S of the validation rows was used" if objective.uses_sensitive else "S played no part in it"
    name = _name(chosen).replace("vanilla", "the vanilla model (eta 0)")
    lines = [
        f"Chosen: {name}, by the smallest {objective.name} that keeps mean validation accuracy within",
        f"{max_accuracy_loss:g} of the best vanilla model. {uses}; the test rows were not touched.",
        f"Train and test it: python train.py fit --config {config}",
        f"Written: {', '.join(map(str, files))}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(frame: pd.DataFrame, chosen: pd.Series, measure: str) -> Table:
    count = int(frame["trial"].notna().sum())
    table = Table(title=f"Pareto front of {count} trials, validation rows")
    for heading in ("", "accuracy", measure):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("parameters")
    for position in pareto_front(frame[ACCURACY], frame[measure]):
        row = frame.iloc[position]
        mark = " (chosen)" if row.name == chosen.name else ""
        table.add_row(_name(row) + mark, f"{row[ACCURACY]:.4f}", f"{row[measure]:.4f}", _parameters(row))
    return table


def _name(row: pd.Series) -> str:
    return "vanilla" if pd.isna(row["trial"]) else f"trial {int(row['trial'])}"


def _parameters(row: pd.Series) -> str:
    known = {name: row[name] for name in PARAMETERS if not pd.isna(row.get(name))}
    return ", ".join(
        f"{name} {value if isinstance(value, str) else f'{value:.3g}'}" for name, value in known.items()
    )
