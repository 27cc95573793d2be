"""Gaps with their intervals as a forest plot, and the rates of each group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from fairrf_lightning.report.facts import Estimate, Facts, Gap, GroupRates
from fairrf_lightning.report.figure import (
    BLUE,
    CARD,
    GREEN,
    INK,
    MUTED,
    VERMILLION,
    Figure,
    Table,
    finished,
    plain,
    short,
)
from fairrf_lightning.report.wording import NOT_ESTIMABLE, interval, number, points

_ROW = 66  # pixels
_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>"


def forest(facts: Facts) -> Figure:
    """Return the gaps with their intervals, one row each, with the other model's beside them."""
    gaps = facts.gaps
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": MUTED, "width": 1.5})
    compared = any(gap.other is not None for gap in gaps)
    if compared:
        figure.add_trace(
            _marks(
                gaps, [gap.other for gap in gaps], facts.other, color=VERMILLION, symbol="diamond", down=0.24
            )
        )
    figure.add_trace(
        _marks(gaps, [gap.estimate for gap in gaps], facts.subject, color=BLUE, symbol="circle", down=0.02)
    )
    for row, gap in enumerate(gaps):
        figure.add_annotation(
            **_beside(row, 0, "left"), text=plain(short(_label(gap, gaps), 44)), font={"color": INK}
        )
        text = points(gap.estimate.value) if gap.estimate.is_known else NOT_ESTIMABLE
        figure.add_annotation(**_beside(row, 1, "right"), text=f"<b>{text}</b>", font={"color": INK})
    figure.update_yaxes(range=[len(gaps) - 0.45, -0.62], showticklabels=False, showgrid=False)
    figure.update_xaxes(title="percentage points; 0 is no gap", range=_limits(gaps))
    plot = finished(figure, 62 + _ROW * len(gaps) + 30 * compared, showlegend=compared)
    several = len({gap.scope for gap in gaps}) > 1
    return Figure(
        "forest",
        "Each gap with its 95 % interval" + ("" if several else f", {facts.split}"),
        f"Forest plot of {len(gaps)} gaps. " + " ".join(_sentence(gap, gaps) for gap in gaps),
        plot,
        _forest_table(facts, compared=compared),
    )


def group_bars(facts: Facts) -> list[Figure]:
    """Return for each attribute and rate the bars of its groups."""
    figures = []
    for index, scope in enumerate(dict.fromkeys(row.scope for row in facts.groups)):
        rows = [row for row in facts.groups if row.scope == scope]
        rates = dict.fromkeys(rate for row in rows for rate, of in row.rates.items() if of.has_interval)
        figures += [_bars(f"groups-{index}-{rate.replace(' ', '-')}", scope, rate, rows) for rate in rates]
    return figures


def _bars(name: str, scope: str, rate: str, rows: Sequence[GroupRates]) -> Figure:
    estimates = [row.rates.get(rate, Estimate(float("nan"))) for row in rows]
    values = [100 * of.value if of.is_known else None for of in estimates]
    shown = [f"{number(of, 1)} %, 95 % interval {interval(of)}" for of in estimates]
    bars = go.Bar(
        x=values,
        y=list(range(len(rows))),
        orientation="h",
        marker={"color": GREEN},
        error_x=_whiskers(estimates),
        customdata=[[plain(row.group), text] for row, text in zip(rows, shown, strict=True)],
        hovertemplate=_HOVER,
    )
    figure = go.Figure(bars)
    # The parts of an intersection on lines of their own: cut short, several would look the same.
    labels = ["<br>".join(plain(short(part)) for part in row.group.split(", ")) for row in rows]
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=labels, autorange="reversed", showgrid=False
    )
    figure.update_xaxes(ticksuffix=" %", rangemode="tozero", nticks=6)
    sentences = (f"{row.group}: {text}." for row, text in zip(rows, shown, strict=True))
    heading = ("group", "rows", f"{rate}, %", "95 % interval", "")
    table = [
        (row.group, f"{row.rows:,}", number(of), interval(of, 2), row.note)
        for row, of in zip(rows, estimates, strict=True)
    ]
    return Figure(
        name,
        f"{rate[0].upper()}{rate[1:]} by {scope}",
        f"Bars of the {rate} by {scope}. " + " ".join(sentences),
        finished(figure, 60 + 44 * len(rows), showlegend=False, bargap=0.35),
        Table(heading, table),
    )


def _marks(
    gaps: Sequence[Gap],
    estimates: Sequence[Estimate | None],
    name: str,
    *,
    color: str,
    symbol: str,
    down: float,
) -> go.Scatter:
    rows = [(row, of) for row, of in enumerate(estimates) if of is not None and of.is_known]
    known = [of for _, of in rows]
    return go.Scatter(
        x=[100 * of.value for of in known],
        y=[row + down for row, _ in rows],
        mode="markers",
        name=plain(name),
        marker={"size": 11, "symbol": symbol, "color": color},
        error_x=_whiskers(known, color=color, thickness=2.5),
        customdata=[
            [plain(_label(gaps[row], gaps)), f"{points(of.value)}, 95 % interval {interval(of)}"]
            for row, of in rows
        ],
        hovertemplate=_HOVER,
    )


def _limits(gaps: Sequence[Gap]) -> list[float]:
    """Return the ends of the axis: 0 is always there, and the labels do not lie on its line."""
    shown = [of for gap in gaps for of in (gap.estimate, gap.other) if of is not None and of.is_known]
    ends = [0.0, *(end for of in shown for end in (of.value, of.low, of.high) if not math.isnan(end))]
    low, high = 100 * min(ends), 100 * max(ends)
    margin = 0.04 * (high - low) or 1.0
    return [low - margin, high + margin]


def _whiskers(estimates: Sequence[Estimate], color: str = INK, thickness: float = 1.5) -> dict[str, object]:
    up = [100 * (of.high - of.value) if of.has_interval else 0 for of in estimates]
    down = [100 * (of.value - of.low) if of.has_interval else 0 for of in estimates]
    ends = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return {**ends, "color": color, "thickness": thickness, "width": 5}


def _beside(row: int, x: float, anchor: str) -> dict[str, object]:
    place = {"xref": "paper", "x": x, "xanchor": anchor, "yref": "y", "y": row - 0.32}
    return {**place, "yanchor": "middle", "showarrow": False, "align": anchor, "bgcolor": CARD}


def _label(gap: Gap, gaps: Sequence[Gap]) -> str:
    mode = ", probabilities" if gap.mode == "prob" else ""
    scope = f" · {gap.scope}" if len({of.scope for of in gaps}) > 1 else ""
    return f"{gap.name}{mode}{scope}"


def _sentence(gap: Gap, gaps: Sequence[Gap]) -> str:
    if not gap.estimate.is_known:
        return f"{_label(gap, gaps)}: {NOT_ESTIMABLE}."
    return f"{_label(gap, gaps)}: {points(gap.estimate.value)}, 95 % interval {interval(gap.estimate)}."


def _forest_table(facts: Facts, *, compared: bool) -> Table:
    heading = ["gap", "of", "scope", "points", "95 % interval"]
    rows = []
    for gap in facts.gaps:
        mode = "decisions" if gap.mode == "hard" else "probabilities"
        row = [gap.name, mode, gap.scope, number(gap.estimate), interval(gap.estimate, 2)]
        if compared:
            other = gap.other or Estimate(float("nan"))
            change = gap.difference or Estimate(float("nan"))
            row += [number(other), number(change, signed=True), interval(change, 2, signed=True)]
            row.append(gap.change or "")
        rows.append([*row, gap.note] if any(of.note for of in facts.gaps) else row)
    if compared:
        heading += [facts.other, "change", "95 % interval of the change", "verdict"]
    return Table([*heading, "note"] if any(of.note for of in facts.gaps) else heading, rows)
