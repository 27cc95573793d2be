"""Accuracy against the fairness gaps, with the Pareto front."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.recommend import Recommendation, strength_option

_GAPS = {"eo_gap": "dEO  (equal opportunity gap)", "dp_gap": "dDP  (demographic parity gap)"}


def pareto_front(accuracy: pd.Series, gap: pd.Series) -> list[int]:
    """Return the positions of the points that none beats in both, from the smallest gap up.

    >>> pareto_front(pd.Series([0.80, 0.85, 0.84]), pd.Series([0.02, 0.05, 0.06]))
    [0, 1]
    """
    front: list[int] = []
    best = float("-inf")
    order = pd.DataFrame({"gap": gap.to_numpy(), "loss": -accuracy.to_numpy()}).sort_values(["gap", "loss"])
    for position, loss in order["loss"].items():
        if -loss > best:
            front.append(int(str(position)))
            best = -loss
    return front


def plot_pareto(summary: pd.DataFrame, chosen: Recommendation, path: Path, title: str) -> list[Path]:
    """Draw the test figures of all settings as PNG and SVG and return the files.

    Args:
        summary: One row for each setting.
        chosen: The settings to mark.
        path: The files' path without its ending.
        title: Title of the figure.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise InputError(
            "the plot needs matplotlib: pip install 'fairrf-lightning[plot]', or --plot false"
        ) from error
    option = strength_option(summary)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    for axes, (gap, label) in zip(figure.subplots(1, 2, sharey=True), _GAPS.items(), strict=True):
        x, y = summary[f"test_{gap}"], summary["test_acc"]
        spread = (summary[f"test_{gap}_std"].fillna(0), summary["test_acc_std"].fillna(0))
        axes.errorbar(x, y, spread[1], spread[0], fmt="none", ecolor="lightgray", zorder=1)
        dots = axes.scatter(x, y, c=summary[option], cmap="viridis", zorder=3)
        front = pareto_front(y, x)
        axes.plot(x.iloc[front], y.iloc[front], color="gray", linewidth=1, zorder=2, label="Pareto front")
        marked = [(chosen.without_s, "o", "recommended, without S")]
        if chosen.with_s is not None:
            marked.append((chosen.with_s, "s", "smallest gaps, S on validation"))
        for row, marker, name in marked:
            style = {"facecolors": "none", "edgecolors": "crimson", "linewidths": 1.5, "zorder": 4}
            axes.scatter(row[f"test_{gap}"], row["test_acc"], s=130, marker=marker, label=name, **style)
        axes.set(xlabel=label, ylabel="accuracy" if gap == "eo_gap" else "")
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.colorbar(dots, ax=axes, label=option)
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
