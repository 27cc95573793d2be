"""The commands ``audit`` and ``sample-size``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from fairrf_lightning.audit import Audit, EstimatedGaps, SampleSize, audit, audit_by_survey, sample_size
from fairrf_lightning.audit.predictions import is_checkpoint
from fairrf_lightning.audit.result import (
    NOT_ESTIMABLE,
    has_labels,
    not_compared,
    nothing_to_compare,
    unknown_statements,
)
from fairrf_lightning.cli.parsing import DataOverrides, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.files import write_csv, write_text
from fairrf_lightning.load import Run, check_two_classes
from fairrf_lightning.messages import level_text
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.report import write_report_if_installed
from fairrf_lightning.report.audit import REPORTED_LEVEL, audit_facts
from fairrf_lightning.report.text import MODES

# Two tables of groups, so that names and numbers fit into 80 columns.
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
_OF_MODE = {"hard": "", "prob": ", prob."}
_NEEDING_LABELS = {one.label for one in GAPS.values() if one.needs_labels}


@takes_options_of(audit, "source", "trust", "data_options")
def audit_command(
    source: Path,
    *,
    data: DataOverrides,
    survey: Path | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    out: Path = Path("audit"),
    trust: Sequence[str] = (),
    **options: Any,
) -> Audit | EstimatedGaps:
    """Compare groups: rates, gaps and intervals of a checkpoint or of predictions.

    Args:
        source: Checkpoint, run folder, or CSV or Parquet file of predictions of any model.
        data: Options of the data that differ from those in training, such as --data.path new.csv.
        survey: People whose S is known, to estimate the gaps of a checkpoint on rows without S.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value of S in the survey that is compared with all others.
        out: Folder of audit.json, audit_groups.csv and the report; of estimates.json with a survey.
        trust: Import paths of your own classes that the checkpoint uses.
        options: Passed on to ``audit``.

    Example:
        audit best.ckpt --groups race,sex
        audit best.ckpt --against other.ckpt
        audit predictions.csv --groups race
        audit decisions.csv --groups race --decision hired --positive yes
        audit best.ckpt --survey survey.csv
    """
    if out.is_file():
        raise InputError(f"--out {out}: this is a file; name a folder.")
    with writing_to(out):  # before the work, which may take long
        check_writable(out)
    is_run, level = is_checkpoint(source), options["level"]
    if survey is not None:
        defaults = {name: one.default for name, one in signature(audit).parameters.items()}
        used = {"split", "level"}
        dropped = [name for name, value in options.items() if name not in used and value != defaults[name]]
        if dropped or not is_run:
            named = "".join(f" --{name}" for name in dropped)
            raise InputError(
                "--survey estimates the gaps of a checkpoint's decisions, at 0.5: "
                + (f"leave out{named}." if named else f"{source} is no checkpoint.")
            )
        run, split = data.load(source, trust), options["split"]
        check_two_classes(run)
        return _audit_by_survey(run, survey, out, sensitive=sensitive, group=group, split=split, level=level)
    if sensitive or group:
        raise InputError("--sensitive and --group belong to --survey; name columns by --groups.")
    if not is_run and (data.options or data.name):
        raise InputError(f"--data: only for a checkpoint; {source} is a file of predictions.")
    model = data.load(source, trust) if data.name else source
    result = audit(model, **options, trust=trust, data_options=data.options)
    found = result.to_dict()
    print_audit(found)
    paths = write_audit(result, out)
    facts = partial(audit_facts, found) if level == REPORTED_LEVEL else lambda: None
    written, hint = write_report_if_installed(facts, out)
    print_lines(f"Wrote {', '.join(map(str, [*paths, *written]))}")
    if level != REPORTED_LEVEL:
        hint = f"No report.html: its intervals are at {REPORTED_LEVEL:g}, these at {level:g}."
    if hint:
        print_lines(hint)
    return result


def _audit_by_survey(run: Run, survey: Path, out: Path, **options: Any) -> EstimatedGaps:
    found = audit_by_survey(run, survey, **options)
    groups = ", ".join(found.group_names)
    print_table(found.table(), title=f"Gaps on {found.num_rows:,} rows without S, estimated")
    print_lines(
        f"Groups: {groups}, by a survey of {found.people:,} people"
        + (f" with randomised answers ({found.randomized:g})." if found.randomized else "."),
        f"Accuracy {found.accuracy:.4f}, share of positive decisions {found.positive_share:.4f}.",
    )
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "estimates.json", json.dumps(found.to_dict(), indent=2) + "\n")
    print_lines(f"Wrote {out / 'estimates.json'}")
    return found


@takes_options_of(sample_size)
def sample_size_command(**options: Any) -> SampleSize:
    """Number of rows with a known sensitive attribute that an audit needs.

    Example:
        sample-size 0.05 --pilot audit/audit.json
    """
    found = sample_size(**options)
    print_lines(*repr(found).splitlines())
    return found


def write_audit(result: Audit, folder: Path) -> list[Path]:
    """Write ``audit.json`` and ``audit_groups.csv``, each whole or not at all, and return their paths."""
    paths = [folder / "audit.json", folder / "audit_groups.csv"]
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(paths[0], json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n")
        write_csv(result.groups_table(), paths[1])
    return paths


def print_audit(result: Mapping[str, Any]) -> None:
    """Print a table of groups and one of gaps for each grouping; for two models the changes as well.

    The notices come first, and again at the end: long tables move the first lines out of sight.
    """
    print_lines(*result["notices"])
    interval = f"{level_text(result['level'])} interval"
    if change := result["accuracy_difference"]:
        values = (result["overall"]["accuracy"], result["against"]["accuracy"], change["value"])
        line = [*map(_number, values), _span(change["low"], change["high"]), change["verdict"]]
        columns = ["value", "other", "change", interval, "verdict"]
        print_table([line], title="Accuracy of all rows", columns=columns)
    for grouping in result["groupings"]:
        name = grouping["name"]
        if "num_classes" in result:
            _print_classes(grouping, result, interval)
            continue
        for numbers, words in _group_tables(result):
            print_table(
                [_group_line(group, numbers) for group in _with_all_rows(grouping, result)],
                title=f"Groups by {name}{words}",
                columns=["group", "rows", *numbers.values()],
            )
        print_table(
            [[gap["gap"], MODES[gap["mode"]], *_gap_numbers(gap, result)] for gap in grouping["gaps"]],
            title=f"Gaps by {name}",
            columns=["gap", "of", "value", interval],
        )
        changes = [
            [f"{gap['gap']}{_OF_MODE[gap['mode']]}", *_change(gap)]
            for gap in grouping["gaps"]
            if gap["against"]
        ]
        if changes:
            _print_changes(changes, name, interval)
        print_lines(*_notes(grouping, result))
    print_lines(*result["notices"])


def _print_classes(grouping: Mapping[str, Any], result: Mapping[str, Any], interval: str) -> None:
    """Print a grouping of more than two classes: rates, the largest gaps, and the gaps of each class."""
    name, groups = grouping["name"], _with_all_rows(grouping, result)
    rates = {"selection_rate": "selected"}
    if has_labels(result):
        rates |= {name: _DECISIONS[name] for name in ("true_positive_rate", "false_positive_rate")}
        rates["base_rate"] = _SCORES["base_rate"]
        print_table(
            [_group_line(group, {"accuracy": ""}) for group in groups],
            title=f"Accuracy by {name}",
            columns=["group", "rows", "accuracy"],
        )
    lines = [
        [group["name"], str(one["class"]), *(_number(one[rate]) for rate in rates)]
        for group in groups
        if group["estimable"]
        for one in group["classes"]
    ]
    print_table(lines, title=f"Classes by {name}", columns=["group", "class", *rates.values()])
    largest = [
        (gap, "" if gap["largest_class"] is None else str(gap["largest_class"])) for gap in grouping["gaps"]
    ]
    print_table(
        [[gap["gap"], MODES[gap["mode"]], number, *_gap_numbers(gap, result)] for gap, number in largest],
        title=f"Gaps by {name}, the largest of {result['num_classes']} classes",
        columns=["gap", "of", "class", "value", interval],
    )
    hard = [gap for gap in grouping["gaps"] if gap["mode"] == "hard" and gap["by_class"]]
    hard = [gap for gap in hard if has_labels(result) or gap["gap"] not in _NEEDING_LABELS]
    parts = [(gap["gap"], number, one) for gap in hard for number, one in enumerate(gap["by_class"])]
    print_table(
        [[gap, str(number), *_gap_numbers(one, result)] for gap, number, one in parts],
        title=f"Gaps by {name}, decisions of each class",
        columns=["gap", "class", "value", interval],
    )
    if result["against"] is not None:
        changes = [[f"{gap} class {number}", *_change(one)] for gap, number, one in parts if one["against"]]
        _print_changes(changes, name, interval)
    named = [{**one, "gap": f"{gap} of class {number}"} for gap, number, one in parts]
    print_lines(*_notes({**grouping, "gaps": hard}, result), *_left_out(named, result))


def _print_changes(changes: list[list[str]], name: str, interval: str) -> None:
    columns = ["gap", "other", "change", interval, "verdict"]
    print_table(changes, title=f"Change of the gaps by {name}", columns=columns)


def _with_all_rows(grouping: Mapping[str, Any], result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*grouping["groups"], {"name": "all rows", "estimable": True, **result["overall"]}]


def _group_tables(result: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the columns of each table of groups, and the end of its title."""
    has_scores = "auc" in result["overall"]
    if not has_labels(result):
        predicted = {"mean_probability": _SCORES["mean_probability"]} if has_scores else {}
        yield {"selection_rate": _DECISIONS["selection_rate"]} | predicted, ""
        return
    yield _DECISIONS | ({} if has_scores else {"base_rate": _SCORES["base_rate"]}), ""
    if has_scores:
        yield _SCORES, ": scores"


def _group_line(group: Mapping[str, Any], numbers: Mapping[str, str]) -> list[str]:
    shown = [_number(group.get(name)) for name in numbers]
    if not group["estimable"]:
        shown = [NOT_ESTIMABLE, *[""] * (len(numbers) - 1)]
    return [group["name"], f"{group['rows']:,}", *shown]


def _gap_numbers(gap: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Return the value and the interval of a gap."""
    if gap["gap"] in _NEEDING_LABELS and not has_labels(result):
        return ["not applicable"] * 2
    return [_number(gap["value"]), _span(gap["low"], gap["high"])]


def _change(gap: Mapping[str, Any]) -> list[str]:
    """Return the other model's value, the difference, its interval and the verdict."""
    other = gap["against"]
    ends = _span(other["difference_low"], other["difference_high"])
    return [_number(other["value"]), _number(other["difference"]), ends, other["verdict"]]


def _notes(grouping: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[str]:
    yield from not_compared(grouping, result["rows"])
    if why := nothing_to_compare(grouping):
        yield why
    yield from unknown_statements(grouping)
    yield from _left_out(grouping["gaps"], result)


def _left_out(gaps: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> Iterator[str]:
    for gap in gaps:
        if gap["mode"] == "hard" and gap["left_out"]:
            absent = "; ".join(gap["left_out"])
            yield f"{gap['gap']} leaves out groups with fewer than {result['min_rows']} such rows: {absent}."


def _number(value: float | None) -> str:
    return NOT_ESTIMABLE if value is None else f"{value:.4f}"


def _span(low: float | None, high: float | None) -> str:
    return NOT_ESTIMABLE if low is None or high is None else f"{low:.3f} to {high:.3f}"
