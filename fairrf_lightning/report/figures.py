"""Plots as inline SVG: real text, ``<title>`` tooltips, and colours that are variables of the page's CSS.

Most plots are drawn for a phone and shown two per row on a desktop, so that their text is readable on both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fairrf_lightning.audit.result import NOT_ESTIMABLE
from fairrf_lightning.messages import DASH, first_upper, percent, points
from fairrf_lightning.report.facts import (
    Estimate,
    Facts,
    Front,
    History,
    MeasuredGap,
    MeasuredGroup,
    Point,
    Training,
)
from fairrf_lightning.report.text import (
    MODES,
    gap_name,
    interval,
    is_gap,
)

if TYPE_CHECKING:
    from fairrf_lightning.certificate import Certificate, GapBound

# The page's CSS defines these variables for light, dark and print. The first four are for text, lines and
# the background; the rest is the palette of Okabe and Ito, which colour-blind readers can tell apart.
_VARIABLES = {"#1b2430": "ink", "#5b6675": "muted", "#dde2e8": "line", "#ffffff": "card"}
_VARIABLES |= {"#0072b2": "blue", "#d55e00": "vermilion", "#009e73": "green", "#cc79a7": "purple"}
_VARIABLES |= {"#e69f00": "orange", "#56b4e9": "sky"}
_INK, _MUTED, _LINE, _CARD, _BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY = _VARIABLES
_SERIES = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)
_MARKERS = ("o", "D", "s", "^", "P", "X", "*", "h")
_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 2, 3)))

_WIDTH, _WIDE = 420, 860  # pixels
_ROW = 50
_MAX_GAPS = 6  # with more gaps, only those of decisions are drawn; the table has all
_MAX_MARKERS = 40  # with more epochs, a line alone is easier to read
_MAX_LABEL = 32  # characters, in a narrow plot
_SVG = "http://www.w3.org/2000/svg"
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may contain dollars
    "font.size": 13,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 1,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "text.color": _INK,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Table:
    """A table; a folded one is opened by a click and printed open."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_folded: bool = True


@dataclass(frozen=True)
class Plot:
    """A plot: its id, its title, its content in words, the SVG, a wide version, and its numbers."""

    name: str
    title: str
    alt: str
    svg: str
    wide: str = ""
    table: Table | None = None


class _Canvas:
    """One pair of axes in the style of the page, with the tooltips of its marks.

    Args:
        height: Height of the axes in pixels; legend, ticks and label are added to it.
        width: Width of the whole plot.
        left: Width of the margin for labels of the vertical axis.
    """

    def __init__(self, height: float, width: int = _WIDTH, left: int = 4) -> None:
        self.figure = Figure()
        self.axes: Axes = self.figure.add_subplot()
        self.height, self.width, self.left = height, width, left
        self.legend_lines = 0
        self.tips: dict[str, Sequence[str]] = {}

    def tip(self, artist: Artist, *tips: str) -> None:
        """Give a mark a tooltip, or each marker of a line its own."""
        name = f"tip{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = tips

    def mark(self, x: float, y: float, tip: str, **style: Any) -> None:
        """Draw a marker."""
        (dot,) = self.axes.plot([x], [y], linestyle="", markersize=8.5, clip_on=False, **style)
        self.tip(dot, tip)

    def span(self, of: Estimate | GapBound, y: float, tip: str, **style: Any) -> None:
        """Draw a line between two limits."""
        (line,) = self.axes.plot([100 * of.low, 100 * of.high], [y, y], **style)
        self.tip(line, tip)

    def rows(self, labels: Sequence[str], values: Sequence[str]) -> None:
        """Make room for one row per label: its label on the left, its value on the right, marks below."""
        axes = self.axes
        axes.set_ylim(len(labels) - 0.3, -0.72)
        axes.yaxis.set_visible(False)
        axes.spines.left.set_visible(False)
        axes.grid(axis="x")
        place: Any = {"transform": axes.get_yaxis_transform(), "va": "center"}
        box: Any = {"facecolor": _CARD, "edgecolor": "none", "pad": 1.5}
        for row, (label, value) in enumerate(zip(labels, values, strict=True)):
            length = _MAX_LABEL if self.width == _WIDTH else 2 * _MAX_LABEL
            shown = axes.text(0, row - 0.36, short(label, length), ha="left", bbox=box, **place)
            self.tip(shown, label)
            axes.text(1, row - 0.36, value, ha="right", weight="bold", bbox=box, **place)

    def zero_line(self) -> None:
        self.axes.axvline(0, color=_MUTED, lw=1.5, zorder=1)

    def legend(self) -> None:
        handles, labels = self.axes.get_legend_handles_labels()
        labels = [short(label, 20) for label in labels]
        columns = 3 if max(map(len, labels)) <= 12 else 2
        self.legend_lines = -(-len(labels) // columns)
        place: Any = {"loc": "upper left", "bbox_to_anchor": (0, 1), "borderaxespad": 0, "borderpad": 0}
        self.figure.legend(handles, labels, ncols=columns, columnspacing=1.2, **place)

    def svg(self, name: str, alt: str) -> str:
        """Return the SVG element: an image with its content in words."""
        # Fixed margins: a layout engine would draw everything twice.
        top, bottom = 8 + 19 * self.legend_lines, 22 + 18 * bool(self.axes.get_xlabel())
        total = top + self.height + bottom
        self.figure.set_size_inches(self.width / 72, total / 72)  # SVG has 72 dpi
        inner = (self.width - self.left - 12) / self.width
        self.axes.set_position((self.left / self.width, bottom / total, inner, self.height / total))
        file = BytesIO()
        self.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        root = ET.fromstring(file.getvalue())  # noqa: S314 - our own output
        for parent in list(root.iter()):
            for child in list(parent):
                if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                    parent.remove(child)
        ids = {item.get("id", ""): f"{name}-{count}" for count, item in enumerate(root.iter())}
        for item in root.iter():
            for title in self._titles(item):
                item.insert(0, title)
            _rewrite(item, ids)
        root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": alt}
        ET.register_namespace("", _SVG)
        text = ET.tostring(root, encoding="unicode")
        return re.sub(r">\s+<", "><", text)

    def _titles(self, item: ET.Element) -> Iterator[ET.Element]:
        tips = self.tips.get(item.get("id", ""), ())
        marks = list(item.iter(f"{{{_SVG}}}use"))
        owners = marks if len(tips) == len(marks) > 1 else [item]
        for owner, tip in zip(owners, tips, strict=False):
            title = ET.Element(f"{{{_SVG}}}title")
            title.text = tip
            if owner is item:
                yield title
            else:
                owner.insert(0, title)


def _rewrite(item: ET.Element, ids: Mapping[str, str]) -> None:
    """Make ids unique on the page, links relative to them, and colours variables."""
    if (identifier := item.attrib.pop("id", "")) and item.tag.endswith(("clipPath", "path")):
        item.set("id", ids[identifier])
    for key, value in list(item.attrib.items()):
        if key.endswith("href"):
            del item.attrib[key]
            item.set("href", f"#{ids[value[1:]]}")
        elif key == "clip-path":
            item.set(key, f"url(#{ids[value[5:-1]]})")
        elif key == "style":
            style = re.sub(r"#[0-9a-f]{6}", lambda found: f"var(--{_VARIABLES[found[0]]})", value)
            item.set(key, re.sub(r"(?<=[:;]) |\s*font-family:[^;]*;?", "", style))
        elif key in ("d", "x", "y", "width", "height"):
            item.set(key, re.sub(r"(\.\d)\d+", r"\1", value))
        elif value.startswith("rotate(-0 "):
            del item.attrib[key]


def short(text: str, length: int) -> str:
    """Return a label that fits on a phone; tooltip and table have it in full."""
    return text if len(text) <= length else text[: length - 1] + "…"


def gap_label(gap: MeasuredGap, gaps: Sequence[MeasuredGap]) -> str:
    """Return the label of a gap's row, with its attribute if there are several."""
    mode = ", probabilities" if gap.mode == "prob" else ""
    scope = f" \N{MIDDLE DOT} {gap.scope}" if len({of.scope for of in gaps}) > 1 else ""
    return f"{gap.name}{mode}{scope}"


@mpl.rc_context(_STYLE)
def forest(facts: Facts) -> Plot:
    """Return the gaps with their intervals, one row each, and the compared model's below."""
    gaps = facts.gaps
    if len(gaps) > _MAX_GAPS:
        gaps = [gap for gap in gaps if gap.mode == "hard"]
    labels = [gap_label(gap, gaps) for gap in gaps]
    values = [points(gap.estimate.value) if gap.estimate.is_known else NOT_ESTIMABLE for gap in gaps]
    sentences = (
        f"{label}: {_with_interval(gap.estimate) if gap.estimate.is_known else NOT_ESTIMABLE}."
        for label, gap in zip(labels, gaps, strict=True)
    )
    compared = any(gap.other is not None for gap in gaps)

    def draw(width: int, name: str) -> str:
        canvas = _Canvas((_ROW + 14 * compared) * len(gaps), width)
        canvas.rows(labels, values)
        canvas.zero_line()
        models = [(facts.subject, "o", _BLUE, -0.03, [gap.estimate for gap in gaps])]
        if compared:
            models.append((facts.other, "D", _VERMILION, 0.2, [gap.other or _NOTHING for gap in gaps]))
        for model, marker, color, down, estimates in models:
            canvas.axes.plot([], [], linestyle="", marker=marker, color=color, label=model)
            for row, of in enumerate(estimates):
                if of.is_known:
                    tip = f"{labels[row]}, {model}: {_with_interval(of)}"
                    if of.has_interval:
                        canvas.span(of, row + down, tip, color=color, lw=2.5)
                    canvas.mark(100 * of.value, row + down, tip, marker=marker, color=color)
        ends = [end for *_, of in models for one in of for end in (one.value, one.low, one.high)]
        canvas.axes.set_xlim(*_limits(ends))
        canvas.axes.set_xlabel("percentage points; 0 is no gap")
        if compared:
            canvas.legend()
        return canvas.svg(name, alt)

    alt = f"Gaps with their 95 % intervals. {' '.join(sentences)}"
    title = "Each gap with its 95 % interval"
    return Plot("forest", title, alt, draw(_WIDTH, "forest"), draw(_WIDE, "forest-wide"))


@mpl.rc_context(_STYLE)
def group_bars(groups: Sequence[MeasuredGroup]) -> list[Plot]:
    """Return the bars of the groups for each attribute and rate with an interval."""
    plots = []
    for index, scope in enumerate(dict.fromkeys(row.scope for row in groups)):
        rows = [row for row in groups if row.scope == scope]
        rates = dict.fromkeys(rate for row in rows for rate, of in row.rates.items() if of.has_interval)
        plots += [_bars(f"groups-{index}-{rate.replace(' ', '-')}", scope, rate, rows) for rate in rates]
    return plots


def _bars(name: str, scope: str, rate: str, rows: Sequence[MeasuredGroup]) -> Plot:
    estimates = [row.rates.get(rate, _NOTHING) for row in rows]
    canvas = _Canvas(_ROW * len(rows))
    values = [percent(of.value) if of.is_known else NOT_ESTIMABLE for of in estimates]
    canvas.rows([row.group for row in rows], values)
    for y, (row, of) in enumerate(zip(rows, estimates, strict=True)):
        if of.is_known:
            tip = f"{row.group}: {_with_interval(of, percent)}"
            (bar,) = canvas.axes.barh([y + 0.12], [100 * of.value], height=0.34, color=_GREEN)
            canvas.tip(bar, tip)
            canvas.span(of, y + 0.12, tip, color=_INK, lw=1.5)
    canvas.axes.set_xlim(left=0)
    canvas.axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    canvas.axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g} %"))
    both = zip(rows, estimates, strict=True)
    sentences = " ".join(f"{row.group}: {_with_interval(of, percent)}." for row, of in both)
    title = f"{first_upper(rate)} by {scope}"
    return Plot(name, title, alt := f"{title}, with 95 % intervals. {sentences}", canvas.svg(name, alt))


@mpl.rc_context(_STYLE)
def front_plots(fronts: Sequence[Front]) -> list[Plot]:
    """Return one plot of accuracy against gap for each front and gap."""
    plots = []
    for index, front in enumerate(fronts):
        for gap in dict.fromkeys(name for point in front.points for name in point.gaps):
            settings = [point for point in front.points if not math.isnan(point.gaps.get(gap, math.nan))]
            if settings:
                plots.append(_front(front, settings, gap, f"front-{index}-{gap}"))
    return plots


def _front(front: Front, settings: Sequence[Point], gap: str, name: str) -> Plot:
    canvas, scale = _Canvas(250, left=64), 100 if is_gap(gap) else 1

    def draw(settings: Sequence[Point], **style: Any) -> None:
        gaps = [scale * of.gaps[gap] for of in settings]
        canvas.axes.plot(gaps, [100 * of.accuracy for of in settings], **style)

    best = pareto_points(settings, gap)
    draw(best, color=_MUTED, linestyle=":", label="Pareto front")
    # FairRF and vanilla come first: they have the colours of the forest plot.
    order = sorted({point.series for point in settings}, key=lambda of: (of != "fairrf", of != "vanilla", of))
    for index, series in enumerate(order):
        style: Any = {"marker": _MARKERS[index % len(_MARKERS)], "color": _SERIES[index % len(_SERIES)]}
        for count, point in enumerate(of for of in settings if of.series == series):
            x, y = scale * point.gaps[gap], 100 * point.accuracy
            width = scale * _or_zero(point.spread.get(gap))
            height = 100 * _or_zero(point.spread.get("accuracy"))
            if width or height:
                canvas.axes.errorbar([x], [y], [height], [width], fmt="none", ecolor=_LINE, zorder=1)
            label = None if count else series
            (dot,) = canvas.axes.plot([x], [y], linestyle="", markersize=8, label=label, **style)
            canvas.tip(dot, f"{point.label}: accuracy {percent(point.accuracy)}, {gap_size(point, gap)}")
    for mark in dict.fromkeys(point.mark for point in settings if point.mark):
        ring: Any = {"marker": "o" if mark == "chosen" else "s", "markersize": 16, "label": mark}
        ring |= {"markerfacecolor": "none", "markeredgecolor": _INK, "markeredgewidth": 2, "linestyle": ""}
        draw([point for point in settings if point.mark == mark], **ring)
    canvas.axes.grid(visible=True)
    canvas.axes.set_xlim(left=0)
    canvas.axes.set_xlabel(f"{gap}{', percentage points' if is_gap(gap) else ''} (smaller is fairer)")
    canvas.axes.set_ylabel("accuracy")
    canvas.axes.yaxis.set_major_locator(MaxNLocator(6))
    canvas.axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g} %"))
    canvas.legend()
    words = f"{gap}, the {gap_name(gap)}" if is_gap(gap) else gap
    alt = f"Accuracy against {words}: {len(settings)} settings, {len(best)} of them on the Pareto front."
    for point in settings:
        if point.mark == "chosen":
            alt += f" Chosen: {point.label}, accuracy {percent(point.accuracy)}, {gap_size(point, gap)}."
    return Plot(name, f"{front.title}: {gap}", alt, canvas.svg(name, alt))


def pareto_points(settings: Sequence[Point], gap: str) -> list[Point]:
    """Return the settings that no other one beats in both accuracy and gap; single models take no part."""
    from fairrf_lightning.experiments.choose import pareto_front  # noqa: PLC0415 - many modules, used once

    known = [of for of in settings if not (of.is_single or math.isnan(of.gaps.get(gap, math.nan)))]
    accuracy = pd.Series([point.accuracy for point in known])
    return [known[row] for row in pareto_front(accuracy, pd.Series([of.gaps[gap] for of in known]))]


def gap_size(point: Point, gap: str) -> str:
    """Return a setting's gap with its name; other measures, such as a mean penalty, have no unit."""
    return f"{gap} {points(point.gaps[gap]) if is_gap(gap) else f'{point.gaps[gap]:.4f}'}"


@mpl.rc_context(_STYLE)
def training_plots(training: Training) -> list[Plot]:
    """Return lambda and the penalties over the epochs, as far as they were logged."""
    shown = (
        ("lambda", "Weight lambda of each related feature", training.weights),
        ("penalty", "Penalty R of each related feature, validation split", training.penalties),
    )
    return [_history(*of, training.chosen_epoch) for of in shown if of[2]]


def _history(name: str, title: str, histories: Sequence[History], chosen: int | None) -> Plot:
    epochs = sorted({epoch for history in histories for epoch in history.epochs})
    canvas = _Canvas(210, left=44)
    for index, history in enumerate(histories):
        style: Any = {"color": _SERIES[index % len(_SERIES)], "linestyle": _DASHES[index % len(_DASHES)]}
        tips = [history.feature]
        if len(epochs) <= _MAX_MARKERS:
            style |= {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 5}
            both = zip(history.epochs, history.values, strict=True)
            tips = [f"{history.feature}, epoch {epoch}: {value:.3f}" for epoch, value in both]
        (line,) = canvas.axes.plot(history.epochs, history.values, lw=2, label=history.feature, **style)
        canvas.tip(line, *tips)
    if chosen is not None and chosen >= 0:
        canvas.axes.axvline(chosen, color=_MUTED, linestyle=":", lw=1.5)
        place: Any = {"transform": canvas.axes.get_xaxis_transform(), "ha": "right", "va": "top"}
        canvas.axes.text(chosen, 0.99, "chosen ", color=_MUTED, **place)
    top = max(max(history.values) for history in histories)
    canvas.axes.set_ylim(0, 1.18 * top or 1)
    canvas.axes.grid(axis="y")
    canvas.axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    canvas.axes.set_xlabel("epoch")
    canvas.legend()
    words = [f"{of.feature} from {of.values[0]:.3f} to {of.values[-1]:.3f}." for of in histories]  # noqa: PD011
    alt = f"{title}, over {len(epochs)} epochs. {' '.join(words)}"
    by_epoch = [dict(zip(of.epochs, of.values, strict=True)) for of in histories]
    rows = [
        (str(epoch), *(f"{of[epoch]:.4f}" if epoch in of else DASH for of in by_epoch)) for epoch in epochs
    ]
    table = Table("Numbers as a table", ("epoch", *(of.feature for of in histories)), rows)
    return Plot(name, title, alt, canvas.svg(name, alt), table=table)


@mpl.rc_context(_STYLE)
def certificate_plot(certificate: Certificate) -> Plot:
    """Return the certified range of the difference of rates."""
    canvas = _Canvas(_ROW * len(MODES))
    values = {mode: certified_range(certificate.rows[mode]) for mode in MODES}
    canvas.rows(list(MODES.values()), list(values.values()))
    canvas.zero_line()
    canvas.axes.plot([], [], color=_SKY, lw=9, label="certified range")
    style: Any = {"marker": "D", "color": _VERMILION}
    if certificate.measured:
        canvas.axes.plot([], [], linestyle="", label="measured with S", **style)
    words = []
    for row, (mode, name) in enumerate(MODES.items()):
        bound, place = certificate.rows[mode], row + 0.12
        words.append(f"{name}: {values[mode]} points.")
        tip = f"{name}: certified from {values[mode]} points"
        canvas.span(bound, place, tip, color=_SKY, lw=11, solid_capstyle="butt")
        if (measured := certificate.measured.get(mode)) is not None:
            words.append(f"Measured with S: {points(measured)}.")
            tip = f"{name}: {points(measured, signed=True)} measured with S"
            canvas.mark(100 * measured, place, tip, **style)
    ends = [end for bound in certificate.rows.values() for end in (bound.low, bound.high)]
    canvas.axes.set_xlim(*_limits(ends))
    canvas.axes.set_xlabel("difference of rates, percentage points")
    canvas.legend()
    title = f"Rate of {certificate.knowledge.group} minus that of all others: certified range"
    alt = f"{title}. {' '.join(words)}"
    return Plot("certificate-ranges", title, alt, canvas.svg("certificate-ranges", alt))


def certified_range(bound: GapBound) -> str:
    """Return a certified range in percentage points, without the unit."""
    return interval(Estimate(0.0, bound.low, bound.high))


_NOTHING = Estimate(math.nan)


def _with_interval(estimate: Estimate, unit: Callable[[float], str] = points) -> str:
    return f"{unit(estimate.value)}, 95 % interval {interval(estimate)}"


def _limits(ends: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis of shares that shows 0."""
    known = [0.0, *(100 * end for end in ends if not math.isnan(end))]
    margin = 0.04 * (max(known) - min(known)) or 1.0
    return min(known) - margin, max(known) + margin


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value
