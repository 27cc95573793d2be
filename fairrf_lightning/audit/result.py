"""The result of an audit: its types, its tables, and what follows from ``audit.json`` alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.messages import first_upper, listing, points
from fairrf_lightning.metrics.counts import Mode
from fairrf_lightning.metrics.decisions import SAME_DECISION, no_information

SCHEMA = 1
FAIRER = "fairer, beyond noise"
LESS_FAIR = "less fair, beyond noise"
MORE_ACCURATE = "more accurate, beyond noise"
LESS_ACCURATE = "less accurate, beyond noise"
NO_DIFFERENCE = "no difference shown"
NOT_ESTIMABLE = "not estimable"
RATES = {
    "selection_rate": "selection rate",
    "true_positive_rate": "true positive rate",
    "false_positive_rate": "false positive rate",
    "accuracy": "accuracy",
}
NO_LABELS = (
    "No true labels: selection rates and dDP are measured; accuracy, true and false positive rates, AUC, "
    "calibration, dEO and dEOdds are not applicable. If the file has labels, name their column by --target."
)


@dataclass(frozen=True)
class GapChange:
    """A gap of the other model on the same rows, and the first model's gap minus it.

    Args:
        value: Gap of the other model, with ``low`` and ``high``.
        difference: Difference, with ``difference_low`` and ``difference_high``.
        verdict: The interval of the difference in words.
        bounds: Smallest and largest gap of the other model that rows of unknown group allow, if any.
        difference_bounds: Outer bounds of the difference: both extremes need not occur together.
    """

    value: float | None
    low: float | None
    high: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    verdict: str
    bounds: list[float] | None = None
    difference_bounds: list[float] | None = None


@dataclass(frozen=True)
class GapResult:
    """A gap between groups; a number that cannot be estimated is ``None``.

    Args:
        gap: Label of the gap: dDP, dEO or dEOdds.
        mode: ``"hard"`` for decisions, ``"prob"`` for probabilities.
        estimable: Whether at least two groups have enough rows.
        left_out: Groups with too few rows, which are not compared.
        value: The gap, with ``low`` and ``high``.
        bounds: Smallest and largest gap that rows of unknown group allow, if there are any.
        against: Comparison with the other model, if there is one.
        by_class: For more than two classes, the gap of each class against all others, with its own interval.
            The other numbers are then those of the largest gap, whose lower limit shares the error
            probability between the classes.
        largest_class: The class with the largest gap.
    """

    gap: str
    mode: Mode
    estimable: bool = False
    left_out: list[str] = field(default_factory=list)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bounds: list[float] | None = None
    against: GapChange | None = None
    by_class: list[GapResult] = field(default_factory=list)
    largest_class: int | None = None


@dataclass(frozen=True)
class GroupingResult:
    """Rates and gaps by one attribute, or by the intersection of several.

    Args:
        name: The attributes in one name.
        attributes: Names of the attributes.
        unknown_rows: Number of rows whose group is unknown.
        groups: Numbers of each group that is compared.
        gaps: Gaps between these groups.
    """

    name: str
    attributes: list[str]
    unknown_rows: int
    groups: list[dict[str, Any]]
    gaps: list[GapResult]


@dataclass(frozen=True, repr=False)
class Audit:
    """Rates of groups and gaps between them; ``to_dict`` is the content of ``audit.json``.

    A number that cannot be estimated is ``None``. Without true labels only rows, ``selection_rate``,
    ``mean_probability`` and dDP are numbers.

    Of more than two classes, each is compared with all others. The numbers of all rows and of each group
    are then rows and accuracy; their ``classes`` hold the rates of each class, without AUC and calibration.

    Args:
        schema: Version of ``audit.json``.
        level: Confidence level of all intervals.
        threshold: Decision threshold; ``None`` for more than two classes.
        min_rows: Groups with fewer rows are not compared.
        rows: Number of rows.
        labels: Whether the rows have true labels.
        source: Description of the model and the rows: kind (checkpoint or predictions), path, against, data,
            split.
        overall: Numbers of all rows: rows, positives, base_rate; accuracy, selection_rate,
            true_positive_rate, false_positive_rate, each with ``_low`` and ``_high`` (Wilson's limits); for
            models with probabilities mean_probability, auc, auc_error, calibration_error.
        against: The same for the other model, without AUC and calibration.
        accuracy_difference: Accuracy minus the other model's on the same rows: value, low, high (Tango's
            limits), verdict, and the numbers of rows that both, one or neither gets right.
        groupings: Results by attribute and, for several attributes, by their intersection.
        notices: Notices to read before any number.
        num_classes: Number of classes.
    """

    schema: int
    level: float
    threshold: float | None
    min_rows: int
    rows: int
    labels: bool
    source: dict[str, Any]
    overall: dict[str, Any]
    against: dict[str, Any] | None
    accuracy_difference: dict[str, Any] | None
    groupings: list[GroupingResult]
    notices: list[str] = field(default_factory=list)
    num_classes: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values; those of several classes only if there are more than two."""
        left_out = {"num_classes", "largest_class", "by_class"} if self.num_classes == 2 else set()
        return asdict(self, dict_factory=lambda items: {k: v for k, v in items if k not in left_out})

    def groups_table(self) -> pd.DataFrame:
        """Return one line per group of each grouping; for more than two classes, per group and class."""
        return pd.DataFrame(
            [
                {"grouping": one.name, **{k: v for k, v in group.items() if k != "classes"}, **numbers}
                for one in self.groupings
                for group in one.groups
                for numbers in group.get("classes", [{}])
            ]
        )

    def gaps_table(self) -> pd.DataFrame:
        """Return one line per gap of each grouping; with another model, the difference and the verdict.

        For more than two classes, the line of the largest gap is followed by one per class.
        """
        lines = []
        for grouping in self.groupings:
            for gap in grouping.gaps:
                line = {"grouping": grouping.name, "gap": gap.gap, "mode": gap.mode}
                if self.num_classes == 2:
                    lines.append(line | self._numbers(gap))
                    continue
                parts = [(f"largest ({gap.largest_class})", gap), *enumerate(gap.by_class)]
                lines += [{**line, "class": number, **self._numbers(part)} for number, part in parts]
        return pd.DataFrame(lines)

    def _numbers(self, gap: GapResult) -> dict[str, Any]:
        change = ("difference", "difference_low", "difference_high", "verdict") if self.against else ()
        return {name: getattr(gap, name) for name in ("value", "low", "high")} | {
            name: getattr(gap.against, name, None) for name in change
        }

    def __repr__(self) -> str:
        """Show the notices and the gaps."""
        table = self.gaps_table().to_string(index=False, float_format="{:.4f}".format)
        return "\n".join([f"Audit of {self.rows:,} rows", *self.notices, table])

    def _repr_html_(self) -> str:
        notices = "".join(f"<p>{escape(line)}</p>" for line in self.notices)
        tables = (self.gaps_table(), self.groups_table())
        return notices + "".join(table.to_html(index=False, float_format="{:.4f}".format) for table in tables)


def read_audit(path: Path) -> dict[str, Any]:
    """Read ``audit.json``.

    Raises:
        InputError: If the file is not one that ``audit`` of this version wrote.
    """
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        schema = found["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not an audit.json; audit writes one.") from error
    if schema != SCHEMA:
        raise InputError(f"{path}: schema {schema} is not known; this version reads {SCHEMA}.")
    if missing := {"level", "min_rows", "rows", "source", "overall", "groupings", "notices"} - set(found):
        raise InputError(f"{path}: {min(missing)} is missing; run audit again.")
    return found


def verdict_of(low: float, high: float, below: str = FAIRER, above: str = LESS_FAIR) -> str:
    """Return an interval of a difference in words.

    Args:
        low: Lower limit.
        high: Upper limit.
        below: Verdict if all of it is below 0.
        above: Verdict if all of it is above 0.

    >>> verdict_of(-0.2, -0.1), verdict_of(-0.1, 0.1), verdict_of(0.1, 0.2)
    ('fairer, beyond noise', 'no difference shown', 'less fair, beyond noise')
    """
    if math.isnan(low) or math.isnan(high):
        return NOT_ESTIMABLE
    return below if high < 0 else above if low > 0 else NO_DIFFERENCE


def notices(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notices about decisions and labels of an audit, as ``audit.json`` has it."""
    for key, whose in (("overall", ""), ("against", "of the other model: ")):
        if why := uninformative(result.get(key)):
            yield first_upper(f"{whose}{why}.")
    if "num_classes" in result:
        yield several_classes(result["num_classes"])
    if not has_labels(result):
        yield NO_LABELS
    elif result["overall"].get("base_rate") in (0, 1):
        yield (
            f"Every true label is {result['overall']['base_rate']:g}: if these are not real labels, "
            "accuracy, calibration, dEO and dEOdds mean nothing; --target '' leaves them out."
        )
    elif (area := _area_below_chance(result["overall"])) is not None:
        yield (
            f"Rows with label 1 have the lower scores (AUC {area:.2f}; chance has 0.5): is 1 the positive "
            "class of labels and scores alike? If one is swapped, accuracy, dEO and dEOdds are wrong."
        )


def _area_below_chance(overall: Mapping[str, Any]) -> float | None:
    """Return the AUC, of scores or else of decisions, if it is below 0.5 beyond chance, else ``None``."""
    hits, errors = overall.get("true_positive_rate"), overall.get("false_positive_rate")
    area = overall.get("auc")
    if area is None and hits is not None and errors is not None:
        area = (1 + hits - errors) / 2
    rows, share = overall["rows"], overall.get("base_rate")
    if area is None or share is None or not 0 < share < 1:
        return None
    error = ((rows + 1) / (12 * rows**2 * share * (1 - share))) ** 0.5  # of scores without any information
    return float(area) if area < 0.5 - 4 * error else None


def several_classes(number: int) -> str:
    """Return what an audit of more than two classes measures, and what it does not."""
    return (
        f"{number} classes: each is compared with all others together. AUC and calibration are not "
        "applicable: they need one positive class."
    )


def has_labels(result: Mapping[str, Any]) -> bool:
    """Return whether the rows of an ``audit.json`` have true labels."""
    return bool(result.get("labels", True))


def uninformative(numbers: Mapping[str, Any] | None) -> str:
    """Return why gaps carry no information, if a model gives (almost) all rows the same decision."""
    if classes := (numbers or {}).get("classes"):
        return SAME_DECISION if any(one["selection_rate"] == 1 for one in classes) else ""
    return no_information(*share_and_balance(numbers))


def share_and_balance(numbers: Mapping[str, Any] | None) -> tuple[float, float]:
    """Return the share of positive decisions and the balanced accuracy; NaN where not known."""
    names = ("selection_rate", "true_positive_rate", "false_positive_rate")
    found = ((numbers or {}).get(name) for name in names)
    share, hits, false_alarms = (math.nan if value is None else float(value) for value in found)
    return share, (hits + 1 - false_alarms) / 2


def may_turn(against: Mapping[str, Any]) -> bool:
    """Return whether knowing the rows of unknown group could change the verdict on a gap."""
    bounds = against.get("difference_bounds")
    if bounds is None:
        return False
    verdict = against["verdict"]
    return bool((verdict == FAIRER and bounds[1] >= 0) or (verdict == LESS_FAIR and bounds[0] <= 0))


def unknown_statements(grouping: Mapping[str, Any]) -> Iterator[str]:
    """Yield how rows of unknown group may change the gaps, and the comparison with the other model."""
    known = [gap for gap in grouping["gaps"] if gap["bounds"] is not None]
    if not known:
        return
    yield (
        f"The {grouping['name']} of {grouping['unknown_rows']:,} rows is not known. Whatever it is, "
        f"{_limits({gap['gap']: gap['bounds'] for gap in known})} on all rows; the intervals do not include "
        "this."
    )
    found = {gap["gap"]: gap["against"] for gap in known if gap["against"]}
    if not found:
        return
    yield f"For the other model, {_limits({name: of['bounds'] for name, of in found.items()})}."
    changes = (
        f"{name} between {points(low, signed=True)} and {points(high, signed=True)}"
        for name, (low, high) in ((name, of["difference_bounds"]) for name, of in found.items())
    )
    yield (
        f"With these rows the change is: {listing(changes)} (outer bounds: the worst cases of the two models "
        "need not occur together)."
    )
    if turning := [f"{name} ({of['verdict']})" for name, of in found.items() if may_turn(of)]:
        yield f"Rows of unknown {grouping['name']} could therefore change the verdict on {listing(turning)}."


def _limits(bounds: Mapping[str, Sequence[float]]) -> str:
    return listing(
        f"{gap} lies between {points(low)} and {points(high)}" for gap, (low, high) in bounds.items()
    )


def not_compared(grouping: Mapping[str, Any], rows: int) -> list[str]:
    """Return a line on the rows of known groups that are not compared, if there are any."""
    others = rows - sum(group["rows"] for group in grouping["groups"]) - grouping["unknown_rows"]
    return [f"{others:,} rows of other groups of {grouping['name']} are not compared."] if others else []


def nothing_to_compare(grouping: Mapping[str, Any]) -> str:
    """Return why a grouping has no gaps if fewer than two of its groups have rows, or an empty text."""
    names, unknown = [group["name"] for group in grouping["groups"]], grouping["unknown_rows"]
    if len(names) > 1:
        return ""
    found = f"only the group '{names[0]}' has rows" if names else "no row's group is known"
    return f"No gap by {grouping['name']}: {found}" + (f", {unknown:,} rows are unknown." if unknown else ".")


def json_number(value: float) -> float | None:
    """Return a number for JSON, ``None`` for NaN."""
    return None if math.isnan(value) else value
