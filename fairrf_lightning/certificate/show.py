"""A certificate as a table and in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from fairrf_lightning.certificate.certify import Certificate, Mode
from fairrf_lightning.certificate.gap import GapBound
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.report.text import points

_NAMES: dict[Mode, str] = {"prob": "probabilities", "hard": "decisions"}
_METHODS = {
    "share": "S's share only",
    "paper": "the paper's Theorem 2, K features",
    "tight": "tight for any S (positive semi-definite)",
    "binary": "tight for a binary S",
}


def print_certificate(certificate: Certificate) -> None:
    """Print what is certain, from what, and what is not said."""
    console = Console()
    console.print(_known(certificate))
    console.print(_bounds(certificate))
    for line in statements(certificate):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def statements(certificate: Certificate) -> Iterator[str]:
    """Yield the certificate in plain words, one statement each."""
    known = certificate.proxies
    condition = (
        "if the figures given for S hold on them"
        if known.level is None
        else f"with {certificate.level:.0%} confidence if the sample was drawn at random from them"
    )
    for mode, bound in certificate.rows.items():
        if bound.adds_nothing:
            yield _nothing(mode, bound, known.group)
            continue
        yield (
            f"Certain for these {certificate.num_rows:,} rows, {condition}: the mean of the {_NAMES[mode]} "
            f"for '{known.group}' minus that of all others is between {points(bound.low)} and "
            f"{points(bound.high)}; dDP is at most {points(bound.bound)}."
        )
        if bound.low > 0 or bound.high < 0:
            least = points(_least(certificate, mode))
            yield f"A gap is certain: dDP of the {_NAMES[mode]} is at least {least}."
    yield from _population(certificate)
    if certificate.widened:
        yield (
            f"No S has the correlations of the sample on these rows: their intervals were widened by "
            f"{certificate.widened:.3f}."
        )
    if known.level is not None:
        yield "A direct audit of the sampled rows is tighter: if the model can be run on them, audit them."
    yield "Nothing is said of dEO, of accuracy by group, of other groups or of causes."


def _nothing(mode: Mode, bound: GapBound, group: str) -> str:
    if not bound.spread:
        return f"Of the {_NAMES[mode]} this certificate says nothing: {SAME_DECISION}."
    return (
        f"Of the {_NAMES[mode]} this certificate adds nothing: dDP is at most {points(bound.bound)}, and the "
        f"share of '{group}' and the {_NAMES[mode]} alone already give {points(bound.by_method['share'])}. "
        "What is known of the columns is too little; this is no evidence of fairness."
    )


def _population(certificate: Certificate) -> Iterator[str]:
    known = {mode: value for mode, value in certificate.population.items() if value is not None}
    if not known:
        yield "The rows are too few for a statement about the population that they were drawn from."
        return
    found = {mode: value for mode, value in known.items() if not certificate.rows[mode].adds_nothing}
    if not found:
        return
    figures = " and ".join(f"{points(value)} ({_NAMES[mode]})" for mode, value in found.items())
    given = "" if certificate.proxies.level is not None else ", if the figures given for S hold there"
    yield (
        f"For the population that the rows were drawn from, dDP is at most {figures} with "
        f"{certificate.level:.0%} confidence{given}."
    )


def _least(certificate: Certificate, mode: Mode) -> float:
    bound = certificate.rows[mode]
    return max(bound.low, -bound.high)


def _known(certificate: Certificate) -> Table:
    known = certificate.proxies
    title = f"Known of '{known.group}' from {known.source}"
    if known.level is not None:
        title += f" (all intervals together: {known.level:.0%})"
    table = Table(title=title)
    table.add_column("column")
    table.add_column("correlation with S", justify="center")
    for name, low, high in zip(known.names, known.box.low, known.box.high, strict=True):
        table.add_row(name, "not known" if high - low >= 2 else _interval(low, high))
    table.add_row("share of rows", _interval(*known.share), end_section=True)
    return table


def _bounds(certificate: Certificate) -> Table:
    table = Table(title="Largest possible dDP (demographic parity gap)")
    table.add_column("by what is used")
    for mode in certificate.rows:
        table.add_column(_NAMES[mode], justify="right")
    for method, label in _METHODS.items():
        figures = [f"{bound.by_method[method]:.3f}" for bound in certificate.rows.values()]
        table.add_row(label, *figures)
    if any(value is not None for value in certificate.population.values()):
        limits = ["-" if value is None else f"{value:.3f}" for value in certificate.population.values()]
        table.add_row(f"the population, {certificate.level:.0%}", *limits)
    if certificate.measured:
        gaps = [f"{abs(gap):.3f}" for gap in certificate.measured.values()]
        table.add_row("measured, as the data tell S after all", *gaps)
    return table


def _interval(low: float, high: float) -> str:
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
