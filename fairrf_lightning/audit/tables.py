"""The audit on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairrf_lightning.audit.gaps import NOT_APPLICABLE, NOT_ESTIMABLE, may_turn, needs_labels
from fairrf_lightning.audit.notices import has_labels

# Two tables, so that names and figures fit into 80 columns, which is also what a pipe gets.
_DECISIONS = {
    "accuracy": "accuracy",
    "selection_rate": "selected",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
}
_SCORES = {
    "base_rate": "observed",
    "mean_probability": "predicted",
    "calibration_error": "calib. error",
    "auc": "AUC",
}


def print_audit(result: Mapping[str, Any]) -> None:
    """Print a table of groups and one of gaps for each grouping; of two models also changes.

    The notices come first, and again at the end: long tables move the first lines out of sight.
    """
    console = Console()
    _print_lines(console, result["notices"])
    if result["accuracy_difference"]:
        console.print(_accuracy(result))
    for grouping in result["groupings"]:
        for figures, words in _figures(result):
            title = f"Groups by {grouping['name']}{words}"
            console.print(_groups(title, grouping, result["overall"], figures))
        console.print(_gaps(grouping, result))
        if any(gap["against"] for gap in grouping["gaps"]):
            console.print(_changes(grouping, result["level"]))
        _print_lines(console, _notes(grouping, result))
    _print_lines(console, result["notices"])


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the figures of each table of groups, and what its title adds."""
    has_scores = "auc" in result["overall"]
    if not has_labels(result):
        predicted = {"mean_probability": _SCORES["mean_probability"]} if has_scores else {}
        yield {"selection_rate": _DECISIONS["selection_rate"]} | predicted, ""
        return
    yield _DECISIONS | ({} if has_scores else {"base_rate": _SCORES["base_rate"]}), ""
    if has_scores:
        yield _SCORES, ": scores"


def _accuracy(result: Mapping[str, Any]) -> Table:
    table = _comparison("Accuracy of all rows", "value", result["level"])
    change = result["accuracy_difference"]
    values = (result["overall"]["accuracy"], result["against"]["accuracy"], change["value"])
    table.add_row(*map(number, values), span(change["low"], change["high"]), change["verdict"])
    return table


def _groups(
    title: str, grouping: Mapping[str, Any], overall: Mapping[str, Any], figures: Mapping[str, str]
) -> Table:
    table = Table(title=Text(title))  # Text: a name may hold what rich takes for markup
    table.add_column("group", overflow="fold")
    for name in ("rows", *figures.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for group in [*grouping["groups"], {"name": "all rows", "estimable": True, **overall}]:
        shown = [number(group.get(name)) for name in figures]
        if not group["estimable"]:
            shown = [NOT_ESTIMABLE, *[""] * (len(figures) - 1)]
        table.add_row(Text(group["name"]), f"{group['rows']:,}", *shown)
    return table


def _gaps(grouping: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    table = Table(title=Text(f"Gaps by {grouping['name']}"))
    for name in ("gap", "mode", "value", f"{100 * result['level']:g} % interval"):
        table.add_column(name)
    for gap in grouping["gaps"]:
        shown = number(gap["value"]), span(gap["low"], gap["high"])
        if needs_labels(gap["gap"]) and not has_labels(result):
            shown = (NOT_APPLICABLE, NOT_APPLICABLE)
        table.add_row(gap["gap"], gap["mode"], *shown)
    return table


def _changes(grouping: Mapping[str, Any], level: float) -> Table:
    """Return the gaps next to the other model's: one table for all would not fit into 80 columns."""
    table = _comparison(f"Change of the gaps by {grouping['name']}", "gap", level)
    for gap in grouping["gaps"]:
        if other := gap["against"]:
            ends = span(other["difference_low"], other["difference_high"])
            sizes = number(other["value"]), number(other["difference"])
            table.add_row(f"{gap['gap']} {gap['mode']}", *sizes, ends, other["verdict"])
    return table


def _comparison(title: str, first: str, level: float) -> Table:
    table = Table(title=Text(title))
    for name in (first, "other", "change", f"{100 * level:g} % interval", "verdict"):
        table.add_column(name)
    return table


def _notes(grouping: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    lines = []
    if others := not_compared(grouping, result["rows"]):
        lines.append(f"{others:,} rows of other groups of {grouping['name']} are not compared.")
    if why := nothing_to_compare(grouping):
        lines.append(why)
    for gap in grouping["gaps"]:
        if gap["mode"] == "hard" and gap["bounds"]:
            low, high = gap["bounds"]
            lines.append(
                f"{gap['gap']} of these rows is between {low:.3f} and {high:.3f}, whatever the groups of the "
                f"{grouping['unknown_rows']:,} rows of unknown {grouping['name']}."
            )
            lines += _other_bounds(gap)
        if gap["mode"] == "hard" and gap["left_out"]:
            absent = "; ".join(gap["left_out"])
            lines.append(
                f"{gap['gap']} leaves out groups with fewer than {result['min_rows']} such rows: {absent}."
            )
    return lines


def _other_bounds(gap: Mapping[str, Any]) -> Iterator[str]:
    other = gap["against"]
    if not other:
        return
    (low, high), (least, most) = other["bounds"], other["difference_bounds"]
    turns = f"; '{other['verdict']}' need not hold with them" if may_turn(other) else ""
    yield (
        f"{gap['gap']} of the other model is between {low:.3f} and {high:.3f}, so the change is between "
        f"{least:.3f} and {most:.3f} (outer bounds: both worst cases need not come together){turns}."
    )


def not_compared(grouping: Mapping[str, Any], rows: int) -> int:
    """Return how many rows are known to be of groups that are not compared."""
    compared = sum(group["rows"] for group in grouping["groups"])
    return int(rows - compared - grouping["unknown_rows"])


def nothing_to_compare(grouping: Mapping[str, Any]) -> str:
    """Return why a grouping has no gaps, if fewer than two of its groups are known at all."""
    names, unknown = [group["name"] for group in grouping["groups"]], grouping["unknown_rows"]
    if len(names) > 1:
        return ""
    found = f"only the group '{names[0]}' has rows" if names else "no row's group is known"
    return f"No gap by {grouping['name']}: {found}" + (f", {unknown:,} rows are unknown." if unknown else ".")


def number(value: float | None) -> str:
    """Return a figure with four digits, or that there is none."""
    return NOT_ESTIMABLE if value is None else f"{value:.4f}"


def span(low: float | None, high: float | None) -> str:
    """Return an interval in words."""
    return NOT_ESTIMABLE if low is None or high is None else f"{low:.3f} to {high:.3f}"
