"""Facts of audits, as in ``audit.json``, and the commands that certify a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairrf_lightning.audit.result import (
    RATES,
    has_labels,
    not_compared,
    share_and_balance,
    uninformative,
)
from fairrf_lightning.callbacks.run_files import package_versions
from fairrf_lightning.errors import InputError
from fairrf_lightning.messages import listing, points, shell_command
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.report.facts import (
    Absent,
    AccuracyAgainst,
    Estimate,
    Facts,
    MeasuredGap,
    MeasuredGroup,
    Verdict,
    estimate,
)
from fairrf_lightning.report.text import (
    LINEAR_ONLY,
    comparison_verdict,
    empty_comparison_verdict,
    gaps_verdict,
    no_information_verdict,
    now,
    several_gaps,
    with_collapse,
    with_groups,
    without_headline,
)

REPORTED_LEVEL = 0.95  # the page and the card say "95 %" throughout
# The rates with intervals are drawn; all are in the table.
_RATES = RATES | {"auc": "AUC", "calibration_error": "calibration error"}


def audit_facts(result: Mapping[str, Any], other: str = "") -> Facts:
    """Return the facts of an audit.

    Args:
        result: The content of ``audit.json``.
        other: Name of the compared model, if there is one; by default that in the audit.

    Raises:
        InputError: If its intervals have another level than those of a report.
    """
    if result["level"] != REPORTED_LEVEL:
        raise InputError(
            f"the intervals of a report have level {REPORTED_LEVEL}; run audit without --level "
            f"{result['level']}."
        )
    source, rows = result["source"], f"{result['rows']:,} rows"
    other, checkpoint = other or str(source["against"] or ""), Path(source["path"])
    run = checkpoint.parent.parent
    gaps, of_classes = _audit_gaps(result), _class_gaps(result)
    accuracy, against = _accuracy(result), _accuracy_against(result)
    compared = of_classes if other and of_classes else gaps  # the difference is known class by class
    verdict = _verdict(result, compared, other, accuracy, against)
    is_checkpoint = source.get("kind") == "checkpoint"
    is_run = is_checkpoint and (run / "config.yaml").is_file()
    absent = {
        "comparison": Absent("No other model was given; the option --against of audit compares with one.")
    }
    if is_run:
        absent["training"] = absent["data"] = Absent(
            "An audit covers a model's decisions, not its training; the report of its run has this.",
            shell_command("report", run),
        )
        absent["certificate"] = Absent(
            "A certificate bounds dDP where groups are not known.", certificate_commands(run, checkpoint)
        )
    return Facts(
        title=f"Audit of {checkpoint.name}" + (f" on {source['data']}" if source["data"] else ""),
        subject=str(source["path"]),
        split=f"{source['split']} split, {rows}" if source["split"] else rows,
        made=now(),
        verdict=verdict,
        accuracy=accuracy,
        positive_share=_positive_share(result["overall"]),
        other=other,
        other_positive_share=_positive_share(result.get("against")),
        accuracy_against=against,
        gaps=[*gaps, *of_classes],
        groups=_groups(result),
        configuration={
            name: str(result[name])
            for name in ("num_classes", "threshold", "level", "min_rows", "rows")
            if result.get(name) is not None
        },
        versions=package_versions(),
        limits=[
            *several_gaps([*gaps, *of_classes]),
            *(line for one in result["groupings"] for line in not_compared(one, result["rows"])),
            *([LINEAR_ONLY] if is_checkpoint else []),
        ],
        absent={**absent, **two_classes_only(result)},
        notices=without_headline(result["notices"], verdict),
    )


def two_classes_only(result: Mapping[str, Any]) -> dict[str, Absent]:
    """Return why sections that are for two classes are left out, if the model has more."""
    if "num_classes" not in result:
        return {}
    left_out = f"Left out: for two classes only, and the model has {result['num_classes']}."
    return dict.fromkeys(("front", "certificate"), Absent(left_out))


def _verdict(
    result: Mapping[str, Any],
    gaps: Sequence[MeasuredGap],
    other: str,
    accuracy: Estimate | None,
    against: AccuracyAgainst | None,
) -> Verdict:
    """Return the headline; a model with (almost) one decision for all has no gaps in it."""
    if why := uninformative(result["overall"]):
        return no_information_verdict(why, accuracy, against)
    if other and uninformative(result["against"]):
        return with_groups(empty_comparison_verdict(gaps, other, accuracy, against), result)
    verdict = comparison_verdict(gaps, other, accuracy, against) if other else gaps_verdict(gaps, accuracy)
    overall, compared = (share_and_balance(result[key]) for key in ("overall", "against"))
    return with_groups(with_collapse(verdict, overall, compared, other), result)


def _accuracy(result: Mapping[str, Any]) -> Estimate | None:
    return estimate(result["overall"], "accuracy") if has_labels(result) else None


def _positive_share(overall: Mapping[str, Any] | None) -> Estimate | None:
    return None if not overall or "selection_rate" not in overall else estimate(overall, "selection_rate")


def _accuracy_against(result: Mapping[str, Any]) -> AccuracyAgainst | None:
    if not result.get("against") or not has_labels(result):
        return None
    other = estimate(result["against"], "accuracy")
    return AccuracyAgainst(other, estimate(result["accuracy_difference"], "value", "low", "high"))


def _audit_gaps(result: Mapping[str, Any]) -> list[MeasuredGap]:
    """Return all gaps, those of decisions first; without true labels only those that need no labels."""
    shown = {gap.label for gap in GAPS.values() if has_labels(result) or not gap.needs_labels}
    found = [gap for one in result["groupings"] for gap in _gaps(one) if gap.name in shown]
    return sorted(found, key=lambda gap: gap.mode)


def _class_gaps(result: Mapping[str, Any]) -> list[MeasuredGap]:
    """Return the gaps of the decisions of each class against all others; empty for two classes."""
    gaps: list[MeasuredGap] = []
    for number in range(result.get("num_classes", 0)):
        groupings = [_of_class(one, number) for one in result["groupings"]]
        gaps += [gap for gap in _audit_gaps({**result, "groupings": groupings}) if gap.mode == "hard"]
    return gaps


def _of_class(grouping: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a grouping with the gaps and groups of one class against all others."""
    gaps = [gap["by_class"][number] for gap in grouping["gaps"]]
    groups = [
        {"rows": of["rows"], "estimable": of["estimable"], "name": f"{of['name']}, class {number}"}
        | of["classes"][number]
        for of in grouping["groups"]
    ]
    return {**grouping, "name": f"{grouping['name']}, class {number}", "gaps": gaps, "groups": groups}


def _groups(result: Mapping[str, Any]) -> list[MeasuredGroup]:
    rates = _RATES if has_labels(result) else {"selection_rate": _RATES["selection_rate"]}
    groupings = result["groupings"]
    if "num_classes" in result:
        classes = [
            {**_of_class(one, number), "name": f"{one['name']}, each class"}
            for one in groupings
            for number in range(result["num_classes"])
        ]
        groupings = [*(groupings if has_labels(result) else ()), *classes]
    return [
        MeasuredGroup(
            grouping["name"],
            group["name"],
            int(group["rows"]),
            {words: estimate(group, name) for name, words in rates.items() if name in group},
            "" if group["estimable"] else "too few rows",
        )
        for grouping in groupings
        for group in grouping["groups"]
    ]


def _gaps(grouping: Mapping[str, Any]) -> Iterator[MeasuredGap]:
    change = ("difference", "difference_low", "difference_high")
    for gap in grouping["gaps"]:
        against = gap["against"]
        yield MeasuredGap(
            gap["gap"],
            grouping["name"],
            estimate(gap, "value", "low", "high"),
            gap["mode"],
            other=estimate(against, "value", "low", "high") if against else None,
            difference=estimate(against, *change) if against else None,
            note=_note(gap, grouping["unknown_rows"]),
        )


def _note(gap: Mapping[str, Any], unknown: int) -> str:
    notes = []
    if gap.get("largest_class") is not None:
        notes.append(f"the largest of all classes, that of class {gap['largest_class']}")
    if gap["left_out"]:
        notes.append(f"too few rows of {listing(gap['left_out'])}")
    if gap["bounds"] is not None:
        low, high = gap["bounds"]
        notes.append(f"{unknown:,} rows of unknown group: between {points(low)} and {points(high)} with them")
    return "; ".join(notes)


def certificate_commands(run: Path, checkpoint: Path) -> str:
    """Return the commands that write a certificate for a checkpoint of a run, and report the run with it."""
    proxies = run / "proxies.yaml"
    template = shell_command("certify", checkpoint, "--template", proxies)
    output = ("--output", run / "certificate.json")
    certify = shell_command("certify", checkpoint, "--proxies", proxies, *output)
    return "\n".join([template, certify, shell_command("report", run)])
