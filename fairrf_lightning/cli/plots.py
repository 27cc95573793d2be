"""Accuracy against the fairness gaps, with the Pareto front."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.choose import Recommendation, pareto_front, strength_option
from fairrf_lightning.files import replacing
from fairrf_lightning.messages import install_command
from fairrf_lightning.metrics.counts import GAPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

_GAPS = {key: f"{GAPS[key].label}  ({GAPS[key].name})" for key in ("eo_gap", "dp_gap")}


def check_matplotlib(otherwise: str = "") -> None:
    """Raise if figures cannot be drawn; commands call this before they train.

    Args:
        otherwise: Option that leaves the figures out, for the message.
    """
    if find_spec("matplotlib") is None:
        hint = f", or {otherwise}" if otherwise else ""
        raise InputError(f"figures need matplotlib: {install_command('plot')}{hint}")


def plot_pareto(summary: pd.DataFrame, chosen: Recommendation, path: Path, title: str) -> list[Path]:
    """Draw the test figures of all settings as PNG and SVG and return the files.

    Args:
        summary: One row for each setting.
        chosen: The settings to mark.
        path: The files' path without its ending.
        title: Title of the figure.
    """
    figure = _new_figure((10, 4.2), title)
    for axes, (gap, label) in zip(figure.subplots(1, 2, sharey=True), _GAPS.items(), strict=True):
        dots = _draw_points(axes, summary, f"test_{gap}", "test_acc")
        marked = [(chosen.without_s, "o", "recommended, without S")]
        if chosen.with_s is not None:
            marked.append((chosen.with_s, "s", "smallest gaps, S on validation"))
        for row, marker, name in marked:
            _mark(axes, row[f"test_{gap}"], row["test_acc"], marker, name)
        axes.set(xlabel=label, ylabel="accuracy" if gap == "eo_gap" else "")
    axes.legend(fontsize="small")
    figure.colorbar(dots, ax=axes, label=strength_option(summary))
    return _save(figure, path)


def plot_trials(trials: pd.DataFrame, chosen: pd.Series, measure: str, path: Path, title: str) -> list[Path]:
    """Draw validation accuracy against one measure as PNG and SVG and return the files.

    Args:
        trials: One row for each trial, with columns ``eta``, ``val_acc``, the measure, and their ``_std``.
        chosen: The row to mark.
        measure: The column of the measure that is to be small.
        path: The files' path without its ending.
        title: Title of the figure.
    """
    figure = _new_figure((6.4, 4.4), title)
    axes = figure.subplots()
    dots = _draw_points(axes, trials, measure, "val_acc")
    _mark(axes, chosen[measure], chosen["val_acc"], "o", "chosen")
    axes.set(xlabel=f"{measure}  (smaller is fairer)", ylabel="validation accuracy")
    axes.legend(fontsize="small")
    figure.colorbar(dots, ax=axes, label="eta")
    return _save(figure, path)


def _new_figure(size: tuple[float, float], title: str) -> Figure:
    check_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    return figure


def _draw_points(axes: Axes, rows: pd.DataFrame, gap: str, accuracy: str) -> PathCollection:
    x, y = rows[gap], rows[accuracy]
    spread = (rows[f"{gap}_std"].fillna(0), rows[f"{accuracy}_std"].fillna(0))
    axes.errorbar(x, y, spread[1], spread[0], fmt="none", ecolor="lightgray", zorder=1)
    dots = axes.scatter(x, y, c=rows[strength_option(rows)], cmap="viridis", zorder=3)
    front = pareto_front(y, x)
    axes.plot(x.iloc[front], y.iloc[front], color="gray", linewidth=1, zorder=2, label="Pareto front")
    axes.grid(alpha=0.3)
    return dots


def _mark(axes: Axes, x: float, y: float, marker: str, name: str) -> None:
    axes.scatter(
        x,
        y,
        s=130,
        marker=marker,
        label=name,
        facecolors="none",
        edgecolors="crimson",
        linewidths=1.5,
        zorder=4,
    )


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for file in files:
        with replacing(file) as unfinished:
            figure.savefig(unfinished, dpi=150, format=file.suffix[1:])
    return files
