"""A figure of the page: its plot, its words for those who do not see it, and its data as a table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's palette, safe for the colour-blind; the page's script has the tones for the dark.
BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY = "#e69f00", "#56b4e9"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
INK, MUTED, LINE, CARD = "#1b2430", "#5b6675", "#dde2e8", "#ffffff"


@dataclass(frozen=True)
class Table:
    """Rows of a figure."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A plot for the page.

    Args:
        name: Its id.
        title: Its heading.
        alt: What it shows, in words.
        plot: Data and layout for plotly.
        table: The same figures as a table.
    """

    name: str
    title: str
    alt: str
    plot: Mapping[str, Any]
    table: Table


def plain(text: str) -> str:
    """Return text that plotly shows as it is: it reads a few tags of HTML in labels."""
    return html.escape(text, quote=False)


def short(text: str, length: int = 18) -> str:
    """Return a label that fits a phone; the table has it in full."""
    return text if len(text) <= length else text[: length - 1] + "…"


def finished(figure: go.Figure, height: int, **layout: Any) -> dict[str, Any]:
    """Return the plot's data and layout in the style of the page."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 8, "t": 12, "b": 8},
        font={"family": "inherit", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"font": {"family": "inherit", "size": 13}},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        dragmode=False,
    )
    axis = {"gridcolor": LINE, "linecolor": LINE, "tickfont": {"color": MUTED}, "automargin": True}
    axis |= {
        "title": {"font": {"color": MUTED, "size": 13}, "standoff": 8},
        "fixedrange": True,
        "zeroline": False,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    figure.update_layout(**layout)
    plot: dict[str, Any] = figure.to_plotly_json()
    plot["layout"].pop("template", None)
    return plot
