"""Facts of an audit, as ``audit.json`` holds it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairrf_lightning.audit.analysis import has_labels, has_same_decision, may_turn, not_compared, notices
from fairrf_lightning.callbacks.run_files import package_versions
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import RunFolder
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.report.commands import certificate_commands, report_commands
from fairrf_lightning.report.extremes import about_groups
from fairrf_lightning.report.facts import Absent, AccuracyAgainst, Estimate, Facts, Gap, GroupRates, Verdict
from fairrf_lightning.report.now import now
from fairrf_lightning.report.verdict import (
    comparison_verdict,
    empty_comparison_verdict,
    gaps_verdict,
    same_decision_verdict,
    several_gaps,
    without_headline,
)
from fairrf_lightning.report.wording import LINEAR_ONLY, listing, points

# The first are drawn, all stand in the table.
_RATES = {
    "selection_rate": "selection rate",
    "true_positive_rate": "true positive rate",
    "false_positive_rate": "false positive rate",
    "accuracy": "accuracy",
    "auc": "AUC",
    "calibration_error": "calibration error",
}
REPORTED_LEVEL = 0.95  # the page and the card say "95 %" throughout
_ORDER = ("dEO", "dDP", "dEOdds")
_NEEDING_LABELS = {gap.label for gap in GAPS.values() if gap.needs_labels}
_MODEL = (
    "An audit is about a model's decisions, not about how it was trained; the report of its run has this."
)


def read_audit(path: Path) -> dict[str, Any]:
    """Return what ``audit`` wrote."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != 1:
            raise InputError(f"{path}: schema {found['schema']} is not known; this version knows 1.")
        if lacking := {"level", "rows", "source", "overall", "groupings"} - set(found):
            raise InputError(f"{path}: {min(lacking)} is missing; audit writes it, so audit again.")
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: this is no audit.json; audit writes one.") from error
    return found


def audit_facts(result: Mapping[str, Any]) -> Facts:
    """Return the facts of an audit."""
    if result["level"] != REPORTED_LEVEL:
        raise InputError(
            f"a report has intervals at {REPORTED_LEVEL}; audit without --level {result['level']}."
        )
    source = result["source"]
    gaps, other = audit_gaps(result), str(source["against"] or "")
    verdict = audit_verdict(result, other)
    ours = source.get("kind") == "checkpoint"
    on = f" on {source['data']}" if source["data"] else ""
    rows = f"{result['rows']:,} rows"
    return Facts(
        title=f"Audit of {Path(source['path']).name}{on}",
        subject=str(source["path"]),
        split=f"{source['split']} split, {rows}" if source["split"] else rows,
        made=now(),
        verdict=verdict,
        accuracy=audit_accuracy(result),
        other=other,
        accuracy_against=accuracy_against(result),
        gaps=gaps,
        groups=audit_groups(result),
        configuration={name: str(result[name]) for name in ("threshold", "level", "min_rows", "rows")},
        versions=package_versions(),
        notes=[*several_gaps(gaps), *left_out(result), *([LINEAR_ONLY] if ours else [])],
        absent=_absent(source),
        notices=without_headline(_notices(result), verdict),
    )


def _notices(result: Mapping[str, Any]) -> list[str]:
    found = result.get("notices")  # files of older audits do not have it
    return list(notices(result) if found is None else found)


def _absent(source: Mapping[str, Any]) -> dict[str, Absent]:
    run = _run_of(source)
    again = "" if run is None else report_commands(run)
    return {
        "comparison": Absent("Nothing was named to compare with; the option --against of audit does it."),
        "front": Absent("One model is one point. The report of a grid shows what others reach."),
        "training": Absent(_MODEL, again),
        "certificate": Absent(
            "Where groups are not known, a certificate bounds dDP.",
            "" if run is None else certificate_commands(run),
        ),
        "data": Absent(_MODEL, again),
    }


def _run_of(source: Mapping[str, Any]) -> RunFolder | None:
    """Return the run that a checkpoint is of, if it lies in the folder of one."""
    folders = Path(source["path"]).parents
    if source.get("kind") != "checkpoint" or len(folders) < 2 or not (folders[1] / "config.yaml").is_file():
        return None
    return RunFolder(folders[1])


def audit_verdict(result: Mapping[str, Any], other: str) -> Verdict:
    """Return the headline of an audit: gaps of a model that gives everyone the same decision are not named.

    Args:
        result: The audit.
        other: Name of the model that is compared with, or nothing.
    """
    gaps, accuracy, against = audit_gaps(result), audit_accuracy(result), accuracy_against(result)
    if has_same_decision(result["overall"]):
        return same_decision_verdict(accuracy, against)
    if other and has_same_decision(result["against"]):
        verdict = empty_comparison_verdict(gaps, other, accuracy, against)
    elif other:
        verdict = comparison_verdict(gaps, other, accuracy, against)
    else:
        verdict = gaps_verdict(gaps, accuracy)
    return with_groups(verdict, result)


def audit_accuracy(result: Mapping[str, Any]) -> Estimate | None:
    """Return the accuracy of all rows; ``None`` without true labels."""
    return _estimate(result["overall"], "accuracy") if has_labels(result) else None


def accuracy_against(result: Mapping[str, Any]) -> AccuracyAgainst | None:
    """Return the accuracy of the model compared with and the difference, if there is one."""
    accuracy = audit_accuracy(result)
    if not result.get("against") or accuracy is None:
        return None
    other = _estimate(result["against"], "accuracy")
    found = result.get("accuracy_difference")  # files of older audits do not have it
    if found is None:
        return AccuracyAgainst(other, Estimate(accuracy.value - other.value))
    return AccuracyAgainst(other, _estimate(found, "value", "low", "high"))


def left_out(result: Mapping[str, Any]) -> list[str]:
    """Return how many rows are of groups that are not compared."""
    return [
        f"{others:,} rows of other groups of {grouping['name']} are not compared."
        for grouping in result["groupings"]
        if (others := not_compared(grouping, result["rows"]))
    ]


def with_groups(verdict: Verdict, result: Mapping[str, Any]) -> Verdict:
    """Add to a verdict which groups a gap lies between, and what rows of unknown group may change."""
    sentences = [*about_groups(result)]
    for grouping in result["groupings"]:
        bounds = [
            f"{gap['gap']} lies between {points(gap['bounds'][0])} and {points(gap['bounds'][1])}"
            for gap in grouping["gaps"]
            if gap["bounds"] is not None
        ]
        if bounds:
            sentences.append(
                f"The {grouping['name']} of {grouping['unknown_rows']:,} rows is not known. Whatever it is, "
                f"{listing(bounds)} on all rows; the intervals do not include this."
            )
        sentences += _changes_with_unknown(grouping)
    return replace(verdict, sentences=[*verdict.sentences, *sentences])


def _changes_with_unknown(grouping: Mapping[str, Any]) -> Iterator[str]:
    """Say how the gaps compare with the other model's, whatever the groups of the unknown rows are."""
    found = {gap["gap"]: gap["against"] for gap in grouping["gaps"] if (gap["against"] or {}).get("bounds")}
    if not found:
        return
    changes = (
        f"{name} between {points(low, signed=True)} and {points(high, signed=True)}"
        for name, (low, high) in ((name, of["difference_bounds"]) for name, of in found.items())
    )
    yield (
        f"With these rows the change is: {listing(changes)} (outer bounds: the worst cases of the two models "
        "need not come together)."
    )
    if turning := [f"{name} ({of['verdict']})" for name, of in found.items() if may_turn(of)]:
        yield f"So the rows of unknown {grouping['name']} could turn the verdict on {listing(turning)}."


def audit_gaps(result: Mapping[str, Any]) -> list[Gap]:
    """Return all gaps, of decisions before those of probabilities; without true labels dDP only."""
    found = [
        gap
        for grouping in result["groupings"]
        for gap in sorted(_gaps(grouping), key=lambda gap: _ORDER.index(gap.name))
        if has_labels(result) or gap.name not in _NEEDING_LABELS
    ]
    return sorted(found, key=lambda gap: gap.mode)


def audit_groups(result: Mapping[str, Any]) -> list[GroupRates]:
    """Return the rates of all groups; without true labels selection rates only."""
    rates = _RATES if has_labels(result) else {"selection_rate": _RATES["selection_rate"]}
    return [
        GroupRates(
            grouping["name"],
            group["name"],
            int(group["rows"]),
            {words: _estimate(group, name) for name, words in rates.items() if name in group},
            "" if group["estimable"] else "too few rows",
        )
        for grouping in result["groupings"]
        for group in grouping["groups"]
    ]


def _gaps(grouping: Mapping[str, Any]) -> Iterator[Gap]:
    for gap in grouping["gaps"]:
        against = gap["against"]
        yield Gap(
            gap["gap"],
            grouping["name"],
            Estimate(*map(_number, (gap["value"], gap["low"], gap["high"]))),
            gap["mode"],
            other=None if against is None else _estimate(against, "value", "low", "high"),
            difference=None
            if against is None
            else _estimate(against, "difference", "difference_low", "difference_high"),
            note=_note(gap, grouping["unknown_rows"]),
        )


def _note(gap: Mapping[str, Any], unknown: int) -> str:
    notes = []
    if gap["left_out"]:
        notes.append(f"too few rows of {listing(gap['left_out'])}")
    if gap["bounds"] is not None:
        low, high = gap["bounds"]
        notes.append(f"{unknown:,} rows of unknown group: between {points(low)} and {points(high)} with them")
    return "; ".join(notes)


def _estimate(of: Mapping[str, Any], name: str, low: str = "", high: str = "") -> Estimate:
    names = (name, low or f"{name}_low", high or f"{name}_high")
    return Estimate(*(_number(of.get(key)) for key in names))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
