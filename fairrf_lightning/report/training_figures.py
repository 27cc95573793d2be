"""Lambda and the penalties over training."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fairrf_lightning.report.facts import Path, Training
from fairrf_lightning.report.figure import (
    DASHES,
    MUTED,
    SERIES,
    SYMBOLS,
    Figure,
    Table,
    finished,
    plain,
    short,
)
from fairrf_lightning.report.wording import NONE

_MOST_MARKERS = 40  # of epochs: beyond, a line alone is easier to read


def training_figures(training: Training) -> list[Figure]:
    """Return the paths of lambda and those of the penalties, as far as there are any."""
    shown = (
        ("lambda", "Weight lambda of each related feature", training.weights),
        ("penalty", "Penalty R of each related feature, validation split", training.penalties),
    )
    return [_paths(name, title, paths, training.chosen_epoch) for name, title, paths in shown if paths]


def _paths(name: str, title: str, paths: Sequence[Path], chosen: int | None) -> Figure:
    figure = go.Figure()
    epochs = sorted({epoch for path in paths for epoch in path.epochs})
    for index, path in enumerate(paths):
        figure.add_trace(
            go.Scatter(
                x=list(path.epochs),
                y=list(path.values),
                name=plain(short(path.feature, 24)),
                mode="lines+markers" if len(epochs) <= _MOST_MARKERS else "lines",
                line={"color": SERIES[index % len(SERIES)], "dash": DASHES[index % len(DASHES)], "width": 2},
                marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 7},
                hovertemplate="%{y:.3f}",
            )
        )
    if chosen is not None and chosen >= 0:
        figure.add_vline(x=chosen, line={"color": MUTED, "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            x=chosen,
            yref="paper",
            y=0.02,
            yanchor="bottom",
            text="chosen",
            showarrow=False,
            xshift=-5,
            xanchor="right",
            font={"color": MUTED, "size": 12},
        )
    figure.update_xaxes(title="epoch", showgrid=False, hoverformat="d")
    figure.update_yaxes(rangemode="tozero")
    words = [f"{path.feature} from {path.values[0]:.3f} to {path.values[-1]:.3f}." for path in paths]
    alt = f"{title}, over {len(epochs)} epochs. " + " ".join(words)
    by_epoch = [dict(zip(path.epochs, path.values, strict=True)) for path in paths]
    rows = [
        (str(epoch), *(f"{of[epoch]:.4f}" if epoch in of else NONE for of in by_epoch)) for epoch in epochs
    ]
    table = Table(("epoch", *(path.feature for path in paths)), rows)
    return Figure(name, title, alt, finished(figure, 360, hovermode="x unified"), table)
