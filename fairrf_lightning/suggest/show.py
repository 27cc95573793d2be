"""The ranking of columns as a table, and what follows from it in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fairrf_lightning.suggest.association import Association
from fairrf_lightning.suggest.proposal import Proposal, Verdict

_WORDS: dict[Verdict, str] = {
    "take": "take",
    "noise": "no: chance?",
    "weak": "no: weak",
    "costly": "no: mostly the label",
    "stand-in": "no: is S, drop it",
}


def print_proposals(
    proposals: Sequence[Proposal], sensitive: str, target: str, joint: float, source: str
) -> None:
    """Print the ranking and the option to paste."""
    table = Table(title=f"What columns tell of {sensitive} and {target}, with 95 % intervals")
    table.add_column("column")
    table.add_column(f"of {sensitive}", justify="center", no_wrap=True)
    table.add_column(f"of {target}", justify="center", no_wrap=True)
    table.add_column("related?")
    for one in proposals:
        table.add_row(one.name, _figure(one.sensitive), _figure(one.target), _WORDS[one.verdict])
    console = Console()
    console.print(table)
    for line in (f"{sensitive} is known from {source}.", *_advice(proposals, sensitive, target, joint)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_without_sensitive(target: Mapping[str, Association], name: str) -> None:
    """Print what can be known without S: what columns tell of the label."""
    table = Table(title=f"What columns tell of {name}, with 95 % intervals")
    table.add_column("column")
    table.add_column(f"of {name}", justify="center")
    for column, one in sorted(target.items(), key=lambda item: -item[1].value):
        table.add_row(column, _figure(one))
    console = Console()
    console.print(table)
    text = (
        "Without S it cannot be known which columns are related to it, how strongly, or whether leaving one "
        "out matters: no column is proposed. What can be known is above: a penalty on columns that tell "
        f"much of {name} costs more accuracy. Choose by knowledge of the domain (censuses and surveys "
        "publish such correlations), or ask S of a few hundred people and come back with --audit-sample "
        "file.csv --sensitive COLUMN. If the data hold S, name it: --sensitive COLUMN."
    )
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _advice(proposals: Sequence[Proposal], sensitive: str, target: str, joint: float) -> Iterator[str]:
    yield (
        "0: tells nothing, 1: tells all; what chance adds is taken off. 'chance?': not beyond noise at 5 %, "
        "corrected for the number of columns."
    )
    if stand_ins := [one.name for one in proposals if one.verdict == "stand-in"]:
        yield f"All but {sensitive} itself: {', '.join(stand_ins)}. Take it out of the data."
    taken = [one for one in proposals if one.verdict == "take"]
    if not taken:
        yield f"No column is proposed: FairRF cannot act on {sensitive} through these columns."
        return
    yield (
        f"Together the proposed columns tell {joint:.2f} of {sensitive}; what they do not tell, no penalty "
        "on them can act on."
    )
    if dear := [one.name for one in taken if one.target and one.target.value > one.sensitive.value]:
        yield (
            f"These tell more of {target} than of {sensitive}; leave them out first if accuracy suffers: "
            f"{', '.join(dear)}."
        )
    yield f"--data.related [{','.join(_quoted(one.name) for one in taken)}]"


def _quoted(name: str) -> str:
    return name if all(letter.isalnum() or letter in "-_." for letter in name) else f'"{name}"'


def _figure(one: Association | None) -> str:
    return "-" if one is None else f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
