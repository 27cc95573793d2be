"""The figures of the report, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fairrf_lightning.experiments.plot_package import check_matplotlib
from fairrf_lightning.experiments.setting import SETTING_COLUMNS
from fairrf_lightning.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEASURES = {"test_acc": "accuracy", "test_eo_gap": "dEO", "test_dp_gap": "dDP"}


def draw_figures(results: pd.DataFrame, folder: Path) -> None:
    """Draw the fronts of each data set and the sensitivity to eta and beta, as far as they were run."""
    check_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    for data in ("adult", "compas", "lsac"):
        runs = results[(results["part"] == data) & ~results["include_sensitive"]]
        if not runs.empty:
            _save(_fronts(runs, data), folder / f"front_{data}")
    grid = results[results["part"] == "sensitivity"]
    if not grid.empty:
        _save(_sensitivity(grid), folder / "sensitivity")


def _fronts(runs: pd.DataFrame, data: str) -> Figure:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an optional dependency

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, gap in zip(axes, ("test_eo_gap", "test_dp_gap"), strict=True):
        for marker, (method, of) in zip("osD^vPX*", runs.groupby("method"), strict=False):
            grouped = of.groupby(SETTING_COLUMNS, dropna=False)[["test_acc", gap]]
            mean, std = grouped.mean(), grouped.std()
            style = {"marker": marker, "capsize": 2, "label": str(method), "linewidth": 1, "markersize": 5}
            axis.errorbar(
                mean[gap],
                mean["test_acc"],
                std["test_acc"],
                std[gap],
                elinewidth=0.4,
                **style,
            )
        axis.set_xlabel(_MEASURES[gap])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    axes[1].legend(frameon=False)
    figure.suptitle(f"{data.upper()}, S out of the inputs: test split, mean and std over seeds")
    return figure


def _sensitivity(grid: pd.DataFrame) -> Figure:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an optional dependency

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axis, (measure, words) in zip(axes, _MEASURES.items(), strict=True):
        _heat_map(axis, grid.pivot_table(index="eta", columns="beta", values=measure), words)
    figure.suptitle("Adult: test split, mean over seeds")
    return figure


def _heat_map(axis: Axes, table: pd.DataFrame, title: str) -> None:
    values = table.to_numpy(dtype=float)
    axis.imshow(values, cmap="cividis", origin="lower", aspect="auto")
    axis.set_xticks(range(table.shape[1]), [f"{beta:g}" for beta in table.columns])
    axis.set_yticks(range(table.shape[0]), [f"{eta:g}" for eta in table.index])
    for row, column in ((r, c) for r in range(table.shape[0]) for c in range(table.shape[1])):
        value = values[row, column]
        color = "w" if value < (values.min() + values.max()) / 2 else "k"
        axis.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, fontsize=8)
    axis.set(xlabel="beta", ylabel="eta", title=title)


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an optional dependency

    for ending in ("svg", "png"):
        with replacing(path.with_suffix(f".{ending}")) as unfinished:
            figure.savefig(unfinished, dpi=150, format=ending)
    plt.close(figure)
