"""Facts of audits, certificates, grids and sweeps, from the results of those analyses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fairrf_lightning.audit.result import (
    RATES,
    has_labels,
    not_compared,
    share_and_balance,
    uninformative,
)
from fairrf_lightning.callbacks.run_files import package_versions
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.choose import (
    Recommendation,
    choice_rule,
    difference,
    mean_interval,
    recommend,
    rejection_lines,
    setting_warning,
    summarise,
)
from fairrf_lightning.experiments.results import SHARED_COLUMNS
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, is_vanilla, reference_name, setting_name
from fairrf_lightning.messages import first_upper, listing, percent, points, shell_command
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE
from fairrf_lightning.report.facts import (
    Absent,
    AccuracyAgainst,
    DataFacts,
    Estimate,
    Facts,
    Front,
    MeasuredGap,
    MeasuredGroup,
    Point,
    Verdict,
    data_name,
    estimate,
)
from fairrf_lightning.report.text import (
    LINEAR_ONLY,
    NO_GROUPS,
    comparison_verdict,
    empty_comparison_verdict,
    gaps_verdict,
    no_information_verdict,
    now,
    several_gaps,
    unmeasured_verdict,
    with_collapse,
    with_groups,
    without_headline,
)

if TYPE_CHECKING:
    from fairrf_lightning.experiments.search import SweepResult  # needs Optuna

REPORTED_LEVEL = 0.95  # the page and the card say "95 %" throughout
SEEDS_NOTE = "Intervals are t-intervals of the mean over seeds, each with its own split and initial weights."
_LABELS = {gap.key: gap.label for gap in GAPS.values()}
_GRID_GAPS = ("eo_gap", "dp_gap")
_GRID_MEASURES = {_LABELS[key]: f"test_{key}" for key in _GRID_GAPS}
# The rates with intervals are drawn; all are in the table.
_RATES = RATES | {"auc": "AUC", "calibration_error": "calibration error"}


# --- audits


def audit_facts(result: Mapping[str, Any]) -> Facts:
    """Return the facts of an audit, as in ``audit.json``.

    Raises:
        InputError: If its intervals have another level than those of a report.
    """
    if result["level"] != REPORTED_LEVEL:
        raise InputError(
            f"the intervals of a report have level {REPORTED_LEVEL}; run audit without --level "
            f"{result['level']}."
        )
    source, gaps = result["source"], [*_audit_gaps(result), *_class_gaps(result)]
    other, checkpoint = str(source["against"] or ""), Path(source["path"])
    verdict, run = audit_verdict(result, other), checkpoint.parent.parent
    rows = f"{result['rows']:,} rows"
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
        accuracy=_accuracy(result),
        positive_share=_positive_share(result["overall"]),
        other=other,
        other_positive_share=_positive_share(result.get("against")),
        accuracy_against=_accuracy_against(result),
        gaps=gaps,
        groups=_groups(result),
        configuration={
            name: str(result[name])
            for name in ("num_classes", "threshold", "level", "min_rows", "rows")
            if result.get(name) is not None
        },
        versions=package_versions(),
        limits=[
            *several_gaps(gaps),
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


def audit_verdict(result: Mapping[str, Any], other: str) -> Verdict:
    """Return the headline of an audit; a model with (almost) one decision for all has no gaps in it."""
    gaps, accuracy, against = _audit_gaps(result), _accuracy(result), _accuracy_against(result)
    if other and "num_classes" in result:  # the difference is known class by class
        gaps = _class_gaps(result)
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


# --- certificates


def certificate_commands(run: Path, checkpoint: Path) -> str:
    """Return the commands that write a certificate for a checkpoint of a run, and report the run with it."""
    proxies = run / "proxies.yaml"
    template = shell_command("certify", checkpoint, "--template", proxies)
    output = ("--output", run / "certificate.json")
    certify = shell_command("certify", checkpoint, "--proxies", proxies, *output)
    return "\n".join([template, certify, shell_command("report", run)])


# --- grids


def grid_facts(
    results: pd.DataFrame, *, max_accuracy_loss: float = 0.01, data: DataFacts | None = None
) -> Facts:
    """Return the facts of a grid: the recommended setting compared with the vanilla one."""
    summary = summarise(results)
    chosen = recommend(summary, max_accuracy_loss)
    options = json.loads(str(results["data_options"].iloc[0]))
    name = data_name(str(results["data"].iloc[0]), options.get("path"))
    runs = _runs_of(results, chosen.without_s)
    accuracy, gaps = Estimate(*mean_interval(runs["test_acc"])), list(seed_gaps(runs, None, name))
    other, against = "", None
    absent = {
        "groups": Absent("These are means over several models; audit a checkpoint of fit for group rates."),
        "data": Absent("The results alone do not describe the data; the report written by grid does."),
        "training": Absent("The models of a grid are trained together without logs; a single fit logs them."),
        "certificate": Absent(
            "A certificate is about one checkpoint of fit: certify bounds its dDP without S."
        ),
    }
    if not gaps:
        absent |= dict.fromkeys(("gaps", "comparison", "front"), Absent(NO_GROUPS))
    elif chosen.vanilla is None:
        absent["comparison"] = Absent(_NO_VANILLA)
    elif chosen.is_vanilla:
        absent["comparison"] = Absent(
            "No eligible setting with a penalty keeps the required accuracy (--max_accuracy_loss), so eta 0 "
            "is recommended."
        )
    else:
        vanilla = _runs_of(results, chosen.vanilla)
        other, gaps = reference_name(chosen.vanilla), list(seed_gaps(runs, vanilla, name))
        change = Estimate(*difference(runs, vanilla, "test_acc"))
        against = AccuracyAgainst(Estimate(*mean_interval(vanilla["test_acc"])), change)
    if warning := setting_warning(chosen.without_s):
        verdict = no_information_verdict(warning, accuracy)
    elif not gaps:
        verdict = unmeasured_verdict(accuracy, None, None)
    elif against is None:
        verdict = gaps_verdict(gaps, accuracy)
    else:
        verdict = comparison_verdict(gaps, other, accuracy, against)
    rule = f"Chosen without S {choice_rule(summary, max_accuracy_loss)} Lines are standard deviations."
    points = list(_grid_points(summary, chosen)) if gaps else []
    front = Front(f"{len(summary)} settings on {name}", points, rule)
    return Facts(
        title=f"Grid on {name}",
        subject=setting_name(chosen.without_s),
        split=f"test split, mean of {results['seed'].nunique()} seeds",
        made=now(),
        verdict=verdict,
        accuracy=accuracy,
        other=other,
        accuracy_against=against,
        gaps=gaps,
        fronts=[front] if gaps else [],
        data=data,
        configuration=results_configuration(results),
        versions=installed_versions(results["versions"].iloc[0]),
        absent=absent,
        limits=[
            *([_NO_VANILLA] if chosen.vanilla is None else []),
            *rejection_lines(chosen.rejected),
            SEEDS_NOTE,
            LINEAR_ONLY,
        ],
    )


_NO_VANILLA = "The results contain no vanilla model (eta 0, no adversary) to compare with."


def seed_gaps(runs: pd.DataFrame, vanilla: pd.DataFrame | None, scope: str) -> Iterator[MeasuredGap]:
    """Yield the mean gaps over seeds with their intervals, compared with those of the vanilla runs."""
    for key in _GRID_GAPS:
        measure = f"test_{key}"
        if measure in runs and runs[measure].notna().any():
            gap = MeasuredGap(_LABELS[key], scope, Estimate(*mean_interval(runs[measure])))
            if vanilla is not None:
                other = Estimate(*mean_interval(vanilla[measure]))
                gap = replace(gap, other=other, difference=Estimate(*difference(runs, vanilla, measure)))
            yield gap


def mean_point(
    row: pd.Series,
    *,
    series: str,
    label: str,
    mark: str = "",
    measures: Mapping[str, str] = _GRID_MEASURES,
    accuracy: str = "test_acc",
) -> Point:
    """Return a setting from its means and standard deviations over seeds (``<measure>_std``)."""
    spreads = {"accuracy": accuracy, **measures}
    return Point(
        series=series,
        label=label,
        accuracy=float(row[accuracy]),
        gaps={name: float(row[measure]) for name, measure in measures.items()},
        spread={name: float(row.get(f"{measure}_std", math.nan)) for name, measure in spreads.items()},
        mark=mark,
    )


def results_configuration(results: pd.DataFrame) -> dict[str, str]:
    """Return the values of each option in the results."""
    names = dict.fromkeys([*SETTING_COLUMNS, "seed", *SHARED_COLUMNS])
    shown = {name: list(dict.fromkeys(results[name].dropna())) for name in names if name != "versions"}
    return {name: text for name, values in shown.items() if (text := ", ".join(map(str, values)))}


def installed_versions(versions: str) -> dict[str, str]:
    """Return the packages of a column ``versions`` that were installed."""
    return {package: found for package, found in json.loads(versions).items() if found}


def _grid_points(summary: pd.DataFrame, chosen: Recommendation) -> Iterator[Point]:
    for (index, row), plain in zip(summary.iterrows(), is_vanilla(summary), strict=True):
        mark = "smallest gaps, chosen with S" if _is(chosen.with_s, index) else ""
        mark = "same decision for everyone" if setting_warning(row) else mark
        yield mean_point(
            row,
            series=reference_name(row) if plain else str(row["method"]),
            label=setting_name(row),
            mark="chosen" if _is(chosen.without_s, index) else mark,
        )


def _runs_of(results: pd.DataFrame, setting: pd.Series) -> pd.DataFrame:
    return results[(results[SETTING_COLUMNS] == setting[SETTING_COLUMNS]).all(axis=1)]


def _is(row: pd.Series | None, index: Any) -> bool:
    return row is not None and row.name == index


# --- sweeps


def sweep_facts(result: SweepResult, *, data: DataFacts, folder: Path, max_accuracy_loss: float) -> Facts:
    """Return the facts of a sweep, whose folder has ``chosen.yaml``."""
    trials, chosen, measure = result.trials, result.chosen, result.objective.name
    configuration = {key: str(value) for key, value in result.identity.items()}
    best = trials.loc[trials["trial"].isna(), "val_acc"].max()
    accuracy = Estimate(float(chosen["val_acc"]))
    name, uses_s = _LABELS.get(measure.removeprefix("val_"), measure), result.objective.uses_sensitive
    rule = (
        f"Chosen: the smallest {name} that keeps mean validation accuracy within {max_accuracy_loss:g} of "
        f"the best vanilla model, with a {COLLAPSE_RULE}. "
        + ("S of the validation rows was used." if uses_s else "S was not used.")
    )
    size = points(float(chosen[measure])) if uses_s else f"{chosen[measure]:.4f}"
    sentences = [
        f"Validation accuracy {percent(accuracy.value)}; the best vanilla model has {percent(best)}.",
        f"{name} is {size}. The test rows were not used: the result on them is not known yet.",
    ]
    warning = setting_warning(chosen)
    title = warning or f"{_trial_label(chosen)} is chosen; its fairness on test rows is not measured yet"
    fit = Absent(
        "A sweep uses validation rows only. Train and test the chosen setting, then report that run.",
        shell_command("fit", "--config", folder / "chosen.yaml"),
    )
    trial_points = [
        mean_point(
            row,
            series="vanilla" if pd.isna(row["trial"]) else "trial",
            label=_trial_label(row),
            mark="chosen" if index == chosen.name else "",
            measures={name: measure},
            accuracy="val_acc",
        )
        for index, row in trials.iterrows()
    ]
    return Facts(
        title=f"Sweep on {data.name}",
        subject=_trial_label(chosen),
        split="validation split",
        made=now(),
        verdict=Verdict("unknown", first_upper(title), sentences),
        accuracy=accuracy,
        fronts=[Front(f"{trials['trial'].notna().sum()} trials", trial_points, rule)],
        data=data,
        configuration=configuration,
        versions=installed_versions(configuration["versions"]),
        absent=dict.fromkeys(("gaps", "groups", "comparison", "training", "certificate"), fit),
        limits=[*rejection_lines(result.rejected), LINEAR_ONLY],
    )


def _trial_label(row: pd.Series) -> str:
    return "Vanilla" if pd.isna(row["trial"]) else f"Trial {int(row['trial'])}, eta {row['eta']:.3g}"
