"""Tables and charts of a run, for W&B."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairrf_lightning.metrics.group_rates import GroupRate
from fairrf_lightning.tracking.axes import GAP_LABELS, RATES

Metrics = Mapping[str, float]


def pareto_charts(history: Sequence[Metrics], chosen: Metrics | None) -> dict[str, Any]:
    """Return scatter plots of accuracy against each gap, a point for each epoch."""
    import wandb  # noqa: PLC0415 - an optional dependency

    charts = {}
    for gap, label in GAP_LABELS.items():
        rows = [row for row in history if not math.isnan(row.get(f"val_{gap}", math.nan))]
        if not rows:
            continue
        points = [(row[f"val_{gap}"], row["val_acc"]) for row in rows]
        table = _table(
            [f"val_{gap}", "val_acc", "epoch", "on_front", "chosen"],
            [
                [*point, row["epoch"], _is_efficient(point, points), row is chosen]
                for point, row in zip(points, rows, strict=True)
            ],
        )
        title = f"Accuracy against {label}: epochs of this run, validation split"
        charts[f"pareto/{gap}"] = wandb.plot.scatter(table, f"val_{gap}", "val_acc", title=title)
    return charts


def _is_efficient(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    gap, accuracy = point
    return not any((g <= gap and a >= accuracy) and (g, a) != point for g, a in points)


def result_tables(metrics: Metrics, features: Sequence[str]) -> dict[str, Any]:
    """Return the table of accuracy and gaps with their intervals, and that of the related features."""
    results = [
        [label, metrics[f"test_{name}"], metrics[f"test_{name}_low"], metrics[f"test_{name}_high"]]
        for name, label in {"acc": "accuracy", **GAP_LABELS}.items()
        if f"test_{name}" in metrics
    ]
    by_feature = [
        [name, metrics[f"test_lambda/{name}"], metrics[f"test_penalty/{name}"]]
        for name in features
        if f"test_lambda/{name}" in metrics
    ]
    tables = {
        "test/results": _table(["metric", "value", "low", "high"], results),
        "test/features": _table(["feature", "lambda", "penalty"], by_feature),
    }
    return {name: table for name, table in tables.items() if table.data}


def group_charts(rates: Mapping[str, GroupRate], groups: Sequence[str]) -> dict[str, Any]:
    """Return the table of the groups' rates with their intervals, and a bar chart of each rate."""
    import wandb  # noqa: PLC0415

    if not rates:
        return {}
    rows = [
        [group, RATES[name], *(part[index].item() for part in rate)]
        for index, group in enumerate(groups)
        for name, rate in rates.items()
    ]
    columns = ["group", "rate", "value", "low", "high", "rows"]
    charts: dict[str, Any] = {"test/groups": _table(columns, rows)}
    for name, rate in rates.items():
        bars = [[group, value] for group, value in zip(groups, rate.value.tolist(), strict=True)]
        table = _table(["group", name], bars)
        title = f"{RATES[name]} by group, test split"
        charts[f"test_groups/{name}"] = wandb.plot.bar(table, "group", name, title=title)
    return charts


def _table(columns: list[str], rows: list[list[Any]]) -> Any:
    import wandb  # noqa: PLC0415

    return wandb.Table(columns=list(columns), data=list(rows))
