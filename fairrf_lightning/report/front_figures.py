"""Accuracy against the gaps of many settings, with the chosen one marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
import plotly.graph_objects as go

from fairrf_lightning.experiments.choose import pareto_front
from fairrf_lightning.report.facts import Front, Point
from fairrf_lightning.report.figure import INK, LINE, MUTED, SERIES, SYMBOLS, Figure, Table, finished, plain
from fairrf_lightning.report.wording import GAP_WORDS, percent, points


def front_figures(fronts: Sequence[Front]) -> list[Figure]:
    """Return one figure for each front and gap."""
    return [figure for index, front in enumerate(fronts) for figure in _figures(front, index)]


def _figures(front: Front, index: int) -> Iterator[Figure]:
    for gap in dict.fromkeys(name for point in front.points for name in point.gaps):
        settings = [point for point in front.points if not math.isnan(point.gaps.get(gap, math.nan))]
        if settings:
            yield _figure(front, settings, gap, f"front-{index}-{gap}")


def _figure(front: Front, settings: Sequence[Point], gap: str, name: str) -> Figure:
    figure = go.Figure()
    best = _best(settings, gap)
    figure.add_trace(
        go.Scatter(
            x=[_scale(gap) * point.gaps[gap] for point in best],
            y=[100 * point.accuracy for point in best],
            mode="lines",
            line={"color": MUTED, "width": 1.5, "dash": "dot"},
            name="front",
            hoverinfo="skip",
        )
    )
    for index, series in enumerate(sorted({point.series for point in settings}, key=_order)):
        members = [point for point in settings if point.series == series]
        figure.add_trace(_dots(members, gap, series, index))
    for point in settings:
        if point.mark:
            _mark(figure, point, gap)
    figure.update_xaxes(title=_axis(gap), rangemode="tozero")
    figure.update_yaxes(title="accuracy", ticksuffix=" %", nticks=6)
    chosen = next((point for point in settings if point.mark == "chosen"), None)
    alt = f"Accuracy against {_words(gap)}, of {len(settings)} settings; {len(best)} of them"
    alt += " are not beaten in both."
    if chosen is not None:
        alt += f" Chosen: {chosen.label}, accuracy {percent(chosen.accuracy)}, {_size(chosen, gap)}."
    return Figure(name, f"{front.title}: {gap}", alt, finished(figure, 400), _table(settings, gap, best))


def _dots(points_of: Sequence[Point], gap: str, series: str, index: int) -> go.Scatter:
    def spread(name: str) -> dict[str, object]:
        scale = 100 if name == "accuracy" else _scale(name)
        widths = [scale * _or_zero(point.spread.get(name, 0.0)) for point in points_of]
        return {"type": "data", "array": widths, "color": LINE, "thickness": 1, "width": 0}

    return go.Scatter(
        x=[_scale(gap) * point.gaps[gap] for point in points_of],
        y=[100 * point.accuracy for point in points_of],
        mode="markers",
        name=plain(series),
        marker={
            "size": 10,
            "color": SERIES[index % len(SERIES)],
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "line": {"width": 0},
        },
        error_x=spread(gap),
        error_y=spread("accuracy"),
        customdata=[[plain(point.label), _size(point, gap)] for point in points_of],
        hovertemplate="<b>%{customdata[0]}</b><br>accuracy %{y:.1f}<br>%{customdata[1]}<extra></extra>",
    )


def _mark(figure: go.Figure, point: Point, gap: str) -> None:
    place = {"x": _scale(gap) * point.gaps[gap], "y": 100 * point.accuracy}
    ring = {"size": 20, "color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 2}}
    figure.add_trace(
        go.Scatter(
            x=[place["x"]],
            y=[place["y"]],
            mode="markers",
            marker={**ring, "symbol": "circle" if point.mark == "chosen" else "square"},
            name=plain(point.mark),
            hoverinfo="skip",
        )
    )


def _order(series: str) -> tuple[bool, bool, str]:
    """FairRF and vanilla come first: they have the colours of the forest plot."""
    return (series != "fairrf", series != "vanilla", series)


def _best(settings: Sequence[Point], gap: str) -> list[Point]:
    settings = [point for point in settings if not point.is_single]
    accuracy = pd.Series([point.accuracy for point in settings])
    return [settings[row] for row in pareto_front(accuracy, pd.Series([of.gaps[gap] for of in settings]))]


def _table(settings: Sequence[Point], gap: str, best: Sequence[Point]) -> Table:
    rows = [
        (
            point.series,
            point.label,
            _with_spread(point.accuracy, point.spread.get("accuracy", math.nan)),
            _with_spread(point.gaps[gap], point.spread.get(gap, math.nan), gap),
            "yes" if point in best else "no",
            point.mark,
        )
        for point in settings
    ]
    return Table(
        ("method", "setting", "accuracy, %", f"{gap}, points" if gap in GAP_WORDS else gap, "not beaten", ""),
        rows,
    )


def _with_spread(value: float, spread: float, gap: str = "dDP") -> str:
    scale, digits = _scale(gap), 2 if gap in GAP_WORDS else 4
    text = f"{scale * value:.{digits}f}"
    return text if math.isnan(spread) else f"{text} ± {scale * spread:.{digits}f}"


def _scale(gap: str) -> int:
    """Gaps are shown in percentage points; other measures, such as a mean penalty, as they are."""
    return 100 if gap in GAP_WORDS else 1


def _axis(gap: str) -> str:
    unit = ", percentage points" if gap in GAP_WORDS else ""
    return f"{plain(gap)}{unit} (smaller is fairer)"


def _words(gap: str) -> str:
    return f"{gap}, the {GAP_WORDS[gap]}" if gap in GAP_WORDS else gap


def _size(point: Point, gap: str) -> str:
    value = point.gaps[gap]
    return f"{gap} {points(value) if gap in GAP_WORDS else f'{value:.4f}'}"


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
