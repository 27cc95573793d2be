"""What ``train.py sweep`` prints at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import pandas as pd
from rich.console import Console
from rich.table import Table

from fairrf_lightning.experiments.choose import ACCURACY, pareto_front, rejection_lines, same_decision
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE
from fairrf_lightning.sweep.choice import Choice, row_name
from fairrf_lightning.sweep.objective import Objective
from fairrf_lightning.sweep.space import PARAMETERS


def print_report(
    frame: pd.DataFrame,
    choice: Choice,
    objective: Objective,
    *,
    max_accuracy_loss: float,
    config: Path,
    files: Sequence[Path],
) -> None:
    """Print the Pareto front of the validation rows, the chosen setting with its rule, and the files."""
    warning = same_decision(choice.row)
    above = [f"Note: {warning}."] if warning else []
    uses = "S of the validation rows was used" if objective.uses_sensitive else "S played no part in it"
    name = row_name(choice.row).replace("vanilla", "the vanilla model (eta 0)")
    lines = [
        f"Chosen: {name}, by the smallest {objective.name} that keeps mean validation accuracy within",
        f"{max_accuracy_loss:g} of the best vanilla model. {uses}; the test rows were not touched.",
        f"A trial is eligible only with a {COLLAPSE_RULE}.",
        *rejection_lines(choice.rejected),
        f"Train and test it: python train.py fit --config {quote(str(config))}",
        f"Written: {', '.join(map(str, files))}",
        *above,  # the last lines are what is read
    ]
    console = Console()
    _print(console, above)
    console.print(_table(frame, choice.row, objective.name))
    _print(console, lines)


def _print(console: Console, lines: Sequence[str]) -> None:
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
        table.add_row(_trial(row) + mark, f"{row[ACCURACY]:.4f}", f"{row[measure]:.4f}", _parameters(row))
    return table


def _trial(row: pd.Series) -> str:
    return row_name(row).partition(",")[0]  # the parameters have a column of their own


def _parameters(row: pd.Series) -> str:
    known = {name: row[name] for name in PARAMETERS if not pd.isna(row.get(name))}
    return ", ".join(
        f"{name} {value if isinstance(value, str) else f'{value:.3g}'}" for name, value in known.items()
    )
