"""What ``train.py grid`` prints at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.experiments.choose import (
    CONSTANT,
    MODELS,
    Recommendation,
    choice_rule,
    rejection_lines,
    same_decision,
    strength_option,
)
from fairrf_lightning.experiments.setting import setting_name

_MEASURES = {"test_acc": "accuracy", "test_eo_gap": "dEO", "test_dp_gap": "dDP"}


def print_report(
    summary: pd.DataFrame,
    chosen: Recommendation,
    *,
    data: TabularDataModule,
    max_accuracy_loss: float,
    num_seeds: int,
    files: Sequence[Path],
) -> None:
    """Print the table of settings, the recommendation with its rule, and the files."""
    console = Console()
    warning = same_decision(chosen.without_s)
    above = [f"Note: {warning}."] if warning else []
    for line in above:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(_table(summary, chosen, num_seeds))
    lines = [
        f"Recommended without S: {setting_name(chosen.without_s)}, {choice_rule(summary, max_accuracy_loss)}",
        *_about_lambda(chosen),
        *rejection_lines(chosen.rejected),
        *_about_sensitive(chosen, data),
        f"Written: {', '.join(map(str, files))}",
        *above,  # the last lines are what is read
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _about_lambda(chosen: Recommendation) -> Iterator[str]:
    if weights := _lambda(chosen.without_s):
        yield f"Its lambda: {weights}."
    if chosen.vanilla is None:
        yield "There is no vanilla model (eta 0) among the results to compare it with."


def _about_sensitive(chosen: Recommendation, data: TabularDataModule) -> Iterator[str]:
    if chosen.with_s is None:
        yield "Gaps are not reported: the data do not say which group a row belongs to."
        return
    name = setting_name(chosen.with_s)
    yield f"For comparison, with S on validation: {name}, the smallest dEO + dDP within the same accuracy."
    yield f"S is '{data.sensitive}': {'an' if data.include_sensitive else 'no'} input of the models."


def _table(summary: pd.DataFrame, chosen: Recommendation, num_seeds: int) -> Table:
    table = Table(title=f"Test split, mean ± standard deviation of {num_seeds} seeds")
    known = {name: heading for name, heading in _MEASURES.items() if name in summary}
    option = strength_option(summary)
    for heading in (option, "beta", *known.values(), ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for index, row in summary.iterrows():
        marks = {"without S": chosen.without_s, "with S": chosen.with_s}
        marked = [name for name, chosen_row in marks.items() if _is(chosen_row, index)]
        mark = ", ".join([*_sameness(row), *marked])
        beta = "" if row["eta"] == 0 else f"{row['beta']:g}"
        measures = (_with_spread(row[name], row[f"{name}_std"]) for name in known)
        table.add_row(f"{row[option]:g}", beta, *measures, mark)
    return table


def _with_spread(mean: float, spread: float) -> str:
    return f"{mean:.4f}" + ("" if math.isnan(spread) else f" ± {spread:.4f}")


def _lambda(row: pd.Series) -> str:
    names = [str(name) for name in row.index if str(name).startswith("lambda/")]
    weights = {name.removeprefix("lambda/"): row[name] for name in names if not name.endswith("_std")}
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items() if not math.isnan(weight))


def _is(row: pd.Series | None, index: object) -> bool:
    return row is not None and bool(row.name == index)


def _sameness(row: pd.Series) -> Iterator[str]:
    if row[CONSTANT]:
        yield f"same decision in {row[CONSTANT]:g} of {row[MODELS]:g} models"
