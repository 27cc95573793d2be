"""Facts of grids and sweeps, from their results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

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
from fairrf_lightning.messages import first_upper, percent, points, shell_command
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
    Point,
    Verdict,
    data_name,
)
from fairrf_lightning.report.text import (
    LINEAR_ONLY,
    NO_GROUPS,
    comparison_verdict,
    gaps_verdict,
    no_information_verdict,
    now,
    unmeasured_verdict,
)

if TYPE_CHECKING:
    from fairrf_lightning.experiments.sweep import SweepResult  # needs Optuna

SEEDS_NOTE = "Intervals are t-intervals of the mean over seeds, each with its own split and initial weights."
_NO_VANILLA = "The results contain no vanilla model (eta 0, no adversary) to compare with."
_LABELS = {gap.key: gap.label for gap in GAPS.values()}
_GRID_GAPS = ("eo_gap", "dp_gap")
_GRID_MEASURES = {_LABELS[key]: f"test_{key}" for key in _GRID_GAPS}


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
