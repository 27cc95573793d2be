"""What a certificate bounds, with the truth where it is known."""

from __future__ import annotations

import plotly.graph_objects as go

from fairrf_lightning.report.facts import Certificate
from fairrf_lightning.report.figure import (
    BLUE,
    CARD,
    INK,
    MUTED,
    SKY,
    VERMILLION,
    Figure,
    Table,
    finished,
    plain,
    short,
)
from fairrf_lightning.report.wording import NONE, points

MODES = {"hard": "decisions", "prob": "probabilities"}
_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>"


def certificate_figures(certificate: Certificate) -> list[Figure]:
    """Return the certain range of the gap, and what each kind of knowledge allows to say."""
    return [_ranges(certificate), _methods(certificate)]


def _ranges(certificate: Certificate) -> Figure:
    gaps = certificate.gaps
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": MUTED, "width": 1.5})
    for row, gap in enumerate(gaps):
        figure.add_trace(
            go.Scatter(
                x=[100 * gap.low, 100 * gap.high],
                y=[row, row],
                mode="lines",
                line={"color": SKY, "width": 14},
                name="certain range",
                showlegend=row == 0,
                customdata=[[MODES[gap.mode], _range(gap.low, gap.high)]] * 2,
                hovertemplate=_HOVER,
            )
        )
        place = {"xref": "paper", "x": 0, "xanchor": "left", "y": row - 0.34, "showarrow": False}
        figure.add_annotation(**place, text=MODES[gap.mode], bgcolor=CARD, font={"color": INK})
    known = [(row, gap.measured) for row, gap in enumerate(gaps) if gap.measured is not None]
    if known:
        figure.add_trace(
            go.Scatter(
                x=[100 * value for _, value in known],
                y=[row for row, _ in known],
                mode="markers",
                marker={"symbol": "diamond", "size": 12, "color": VERMILLION},
                name="measured with S",
                customdata=[[MODES[gaps[row].mode], points(value, signed=True)] for row, value in known],
                hovertemplate=_HOVER,
            )
        )
    figure.update_yaxes(range=[len(gaps) - 0.5, -0.65], showticklabels=False, showgrid=False)
    ends = [0.0, *(100 * end for gap in gaps for end in (gap.low, gap.high))]
    margin = 0.05 * (max(ends) - min(ends)) or 1.0
    limits = [min(ends) - margin, max(ends) + margin]
    figure.update_xaxes(title="difference of rates, percentage points", range=limits)
    rows = [
        (
            MODES[gap.mode],
            _range(gap.low, gap.high),
            f"{100 * gap.bound:.2f}",
            NONE if gap.population is None else f"{100 * gap.population:.2f}",
            NONE if gap.measured is None else f"{100 * gap.measured:.2f}",
        )
        for gap in gaps
    ]
    heading = ("of", "certain range, points", "dDP at most", "in the population at most", "measured")
    words = " ".join(f"{MODES[gap.mode]}: {_range(gap.low, gap.high)} points." for gap in gaps)
    title = f"Rate of {certificate.group} minus that of all others: what is certain"
    alt = f"{title}. {words}" + _truth(certificate)
    return Figure("certificate-ranges", title, alt, finished(figure, 230), Table(heading, rows))


def _methods(certificate: Certificate) -> Figure:
    figure = go.Figure()
    names = list(certificate.gaps[0].by_method)
    for gap, color in zip(certificate.gaps, (BLUE, SKY), strict=True):
        values = [gap.by_method[name] for name in names]
        figure.add_trace(
            go.Bar(
                x=[100 * value for value in values],
                y=list(range(len(names))),
                orientation="h",
                name=MODES[gap.mode],
                marker={"color": color},
                customdata=[[name, points(value)] for name, value in zip(names, values, strict=True)],
                hovertemplate=_HOVER,
            )
        )
    ticks = [plain(short(name, 24)) for name in names]
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=ticks, autorange="reversed", showgrid=False
    )
    figure.update_xaxes(title="bound on dDP, points", rangemode="tozero")
    rows = [(name, *(f"{100 * gap.by_method[name]:.2f}" for gap in certificate.gaps)) for name in names]
    modes = [MODES[gap.mode] for gap in certificate.gaps]
    alt = f"Bounds on dDP of {modes[0]} and {modes[1]} by what they use. "
    alt += " ".join(f"{name}: {', '.join(values)} points." for name, *values in rows)
    table = Table(("what is used", *(f"{mode}, points" for mode in modes)), rows)
    return Figure(
        "certificate-methods",
        "Bound on dDP by what it makes use of",
        alt,
        finished(figure, 290, barmode="group", bargap=0.3),
        table,
    )


def _range(low: float, high: float) -> str:
    ends = (points(end).removesuffix(" points") for end in (low, high))
    return " to ".join(ends)


def _truth(certificate: Certificate) -> str:
    known = [gap for gap in certificate.gaps if gap.measured is not None]
    return "".join(f" Measured with S, {MODES[gap.mode]}: {points(gap.measured or 0)}." for gap in known)
