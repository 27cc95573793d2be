"""What ``train.py grid`` prints at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.experiments.recommend import Recommendation, strength_option

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
    console.print(_table(summary, chosen, num_seeds))
    rule = [
        "by the largest eta that keeps mean",
        f"validation accuracy within {max_accuracy_loss:g} of eta 0; of its betas the smallest mean penalty.",
        f"Its lambda: {_lambda(chosen.without_s) or 'none'}.",
    ]
    if strength_option(summary) == "adversary_lr":
        rule = ["of ARL the one with the highest mean validation accuracy."]
    lines = [
        f"Recommended without S: {_name(chosen.without_s)}, {rule[0]}",
        *rule[1:],
        *_about_sensitive(chosen, data),
        f"Written: {', '.join(map(str, files))}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _about_sensitive(chosen: Recommendation, data: TabularDataModule) -> Iterator[str]:
    if chosen.with_s is None:
        yield "Gaps are not reported: the data do not say which group a row belongs to."
        return
    name = _name(chosen.with_s)
    yield f"For comparison, with S on validation: {name}, the smallest dEO + dDP within the same accuracy."
    yield f"S is '{data.sensitive}': {'an' if data.include_sensitive else 'no'} input of the models."


def _table(summary: pd.DataFrame, chosen: Recommendation, num_seeds: int) -> Table:
    table = Table(title=f"Test split, mean +- standard deviation of {num_seeds} seeds")
    known = {name: heading for name, heading in _MEASURES.items() if name in summary}
    option = strength_option(summary)
    for heading in (option, "beta", *known.values(), ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for index, row in summary.iterrows():
        marks = {"without S": chosen.without_s, "with S": chosen.with_s}
        mark = ", ".join(
            name for name, marked in marks.items() if marked is not None and marked.name == index
        )
        beta = "" if row["eta"] == 0 else f"{row['beta']:g}"
        measures = (_with_spread(row[name], row[f"{name}_std"]) for name in known)
        table.add_row(f"{row[option]:g}", beta, *measures, mark)
    return table


def _with_spread(mean: float, spread: float) -> str:
    return f"{mean:.4f}" + ("" if math.isnan(spread) else f" +- {spread:.4f}")


def _lambda(row: pd.Series) -> str:
    names = [str(name) for name in row.index if str(name).startswith("lambda/")]
    weights = {name.removeprefix("lambda/"): row[name] for name in names if not name.endswith("_std")}
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items() if not math.isnan(weight))


def _name(row: pd.Series) -> str:
    if row["adversary_lr"]:
        return f"adversary_lr {row['adversary_lr']:g}"
    return f"eta {row['eta']:g}" + (f", beta {row['beta']:g}" if row["eta"] else " (vanilla)")
