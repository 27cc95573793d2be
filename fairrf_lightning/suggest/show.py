"""The ranking of columns as a table, and what follows from it in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairrf_lightning.suggest.association import Association
from fairrf_lightning.suggest.proposal import Proposal, Verdict

_WORDS: dict[Verdict, str] = {
    "take": "take",
    "noise": "no: chance?",
    "unclear": "no: unclear",
    "weak": "no: weak",
    "costly": "no: mostly the label",
    "stand-in": "no: is S, drop it",
}


@dataclass(frozen=True)
class Ranking:
    """A ranking of columns and what it is based on.

    Args:
        proposals: The columns, in order.
        sensitive: Name of S.
        target: Name of the label.
        joint: Association of S with all proposed columns together.
        source: Where S is known from.
        rows: Number of rows with a known S that were used.
        fit: The command that trains with the proposed columns, if there are any.
    """

    proposals: Sequence[Proposal]
    sensitive: str
    target: str
    joint: float
    source: str
    rows: int
    fit: str


def print_proposals(ranking: Ranking) -> None:
    """Print the ranking and the command to run next."""
    sensitive, target = ranking.sensitive, ranking.target
    table = Table(title=Text(f"Association of columns with {sensitive} and {target}, 95 % intervals"))
    table.add_column("column")
    for name in (sensitive, target):
        table.add_column(Text(f"with {name}"), justify="center", no_wrap=True)
    table.add_column("related?")
    for one in ranking.proposals:
        figures = (_figure(one.sensitive), _figure(one.target))
        table.add_row(Text(one.name), *figures, _WORDS[one.verdict])
    console = Console()
    console.print(table)
    for line in (f"{sensitive} is known from {ranking.source}.", *_advice(ranking)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_without_sensitive(target: Mapping[str, Association], name: str) -> None:
    """Print what can be known without S: the association of columns with the label."""
    table = Table(title=Text(f"Association of columns with {name}, 95 % intervals"))
    table.add_column("column")
    table.add_column(Text(f"with {name}"), justify="center")
    for column, one in sorted(target.items(), key=lambda item: -item[1].value):
        table.add_row(Text(column), _figure(one))
    console = Console()
    console.print(table)
    text = (
        "Without S it cannot be known which columns are related to it, how strongly, or whether leaving one "
        "out matters: no column is proposed. A penalty on columns that are strongly associated with "
        f"{name} costs more accuracy. Choose by knowledge of the domain (censuses and surveys "
        "publish such correlations), or collect S for a few hundred people, then run suggest again with "
        "--audit-sample and --sensitive. If the data hold S, name its column by --sensitive."
    )
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _advice(ranking: Ranking) -> Iterator[str]:
    proposals, sensitive = ranking.proposals, ranking.sensitive
    yield (
        "0: no association, 1: determined; what chance adds is taken off. 'chance?': the interval holds 0, "
        "so that no association is shown; there may be one all the same."
    )
    if unclear := _named(proposals, "unclear"):
        yield (
            f"'unclear': {unclear}. The interval leaves out 0, but it is one of {len(proposals)}, and chance "
            "alone gives such an interval among so many too often. More rows would tell."
        )
    if stand_ins := _named(proposals, "stand-in"):
        yield f"Almost determines {sensitive}: {stand_ins}. Take it out of the data."
    taken = [one for one in proposals if one.verdict == "take"]
    if not taken:
        yield _nothing_proposed(ranking)
        return
    yield (
        f"Together the proposed columns have an association of {ranking.joint:.2f} with {sensitive} in these "
        "rows; a penalty on them cannot act on the rest."
    )
    if dear := [one.name for one in taken if one.target and one.target.value > one.sensitive.value]:
        yield (
            f"These are more associated with {ranking.target} than with {sensitive}; leave them out first if "
            f"accuracy suffers: {', '.join(dear)}."
        )
    yield f"Train with them: {ranking.fit}"


def _nothing_proposed(ranking: Ranking) -> str:
    """Return what the rows show if no column is proposed, with the largest association that they allow."""
    others = [one for one in ranking.proposals if one.verdict != "stand-in"]
    shown = f"No column is proposed from these {ranking.rows:,} rows."
    if not others:
        return shown
    largest = max(others, key=lambda one: one.sensitive.high)
    return (
        f"{shown} That is not evidence that none is related to {ranking.sensitive}: by the intervals an "
        f"association of up to {largest.sensitive.high:.2f} ({largest.name}) is possible."
    )


def _named(proposals: Sequence[Proposal], verdict: Verdict) -> str:
    return ", ".join(one.name for one in proposals if one.verdict == verdict)


def _figure(one: Association | None) -> str:
    return "-" if one is None else f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
