"""Facts of many runs: of a grid, and of the paper re-run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fairrf_lightning.experiments.choose import (
    Recommendation,
    choice_rule,
    choose,
    recommend,
    rejection_lines,
    rejections,
    same_decision,
    summarise,
)
from fairrf_lightning.experiments.comparison import difference, mean_interval
from fairrf_lightning.experiments.results import SHARED_COLUMNS
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, is_vanilla, reference_name, setting_name
from fairrf_lightning.report.facts import (
    Absent,
    AccuracyAgainst,
    Data,
    Estimate,
    Facts,
    Front,
    Gap,
    Point,
    Verdict,
)
from fairrf_lightning.report.now import now
from fairrf_lightning.report.verdict import comparison_verdict, gaps_verdict, unmeasured_verdict
from fairrf_lightning.report.wording import LINEAR_ONLY, percent

_GAPS = {"dEO": "eo_gap", "dDP": "dp_gap"}
# No commands here: they would need the options of the data, which the results do not have.
_ONE_MODEL = Absent(
    "These are means over several models; rates of groups are those of one model: audit a checkpoint of fit.",
)
_NO_TRAINING = Absent("The models of a grid are trained as one and leave no path behind; a single fit does.")
_NO_DATA = Absent("The results alone do not describe the data; the report that grid itself writes does.")
_NO_CERTIFICATE = Absent(
    "A certificate is about one checkpoint: certify bounds the dDP of a model of fit without S.",
)
NO_S = Absent("The data do not say which group a row belongs to, so no gap can be measured.")
_VANILLA = Absent(
    "No eligible setting with a penalty keeps the accuracy that was asked for (--max_accuracy_loss), so that "
    "eta 0 is taken.",
)
_NO_VANILLA = (
    "No vanilla model (eta 0, no adversary) is among the results, so there is nothing to compare with."
)
_SEEDS_NOTE = "Intervals are t-intervals of the mean over seeds, each with its own split and start."


def grid_facts(results: pd.DataFrame, *, max_accuracy_loss: float = 0.01, data: Data | None = None) -> Facts:
    """Return the facts of a grid: the recommended setting against the vanilla one.

    Args:
        results: The grid's ``results.csv``.
        max_accuracy_loss: The budget of the recommendation.
        data: What is known of the data.
    """
    summary = summarise(results)
    chosen = recommend(summary, max_accuracy_loss)
    name = str(results["data"].iloc[0])
    measured = _Measured(results, chosen, name)
    rule = (
        f"Chosen without S {choice_rule(summary, max_accuracy_loss)} Bars are standard deviations over seeds."
    )
    title = f"{len(summary)} settings on {name}"
    return Facts(
        title=f"Grid on {name}",
        subject=setting_name(chosen.without_s),
        split=f"test split, mean of {results['seed'].nunique()} seeds",
        made=now(),
        verdict=measured.verdict,
        accuracy=measured.accuracy,
        other=measured.other,
        accuracy_against=measured.against,
        gaps=measured.gaps,
        fronts=[Front(title, list(_points(summary, chosen)), rule)] if measured.gaps else [],
        data=data,
        configuration=_configuration(results),
        versions=_versions(results),
        absent=_absent() | measured.absent,
        notes=[*_notes(chosen), _SEEDS_NOTE, LINEAR_ONLY],
    )


def _notes(chosen: Recommendation) -> list[str]:
    return [*([_NO_VANILLA] if chosen.vanilla is None else []), *rejection_lines(chosen.rejected)]


class _Measured:
    """Results of the recommended setting of a grid, with the vanilla one if it is another."""

    def __init__(self, results: pd.DataFrame, chosen: Recommendation, scope: str) -> None:
        runs = _runs_of(results, chosen.without_s)
        self.accuracy = Estimate(*mean_interval(runs["test_acc"]))
        self.warning = same_decision(chosen.without_s)
        self.other, self.against = "", None
        self.gaps = list(_gaps(runs, runs, scope))
        self.absent = {} if self.gaps else {"gaps": NO_S, "comparison": NO_S, "front": NO_S}
        if self.gaps and chosen.vanilla is not None and not chosen.is_vanilla:
            vanilla = _runs_of(results, chosen.vanilla)
            change = Estimate(*difference(runs, vanilla, "test_acc"))
            self.other = reference_name(chosen.vanilla)
            self.against = AccuracyAgainst(Estimate(*mean_interval(vanilla["test_acc"])), change)
            self.gaps = list(_gaps(runs, vanilla, scope))
        elif self.gaps:
            self.absent = {"comparison": Absent(_NO_VANILLA) if chosen.vanilla is None else _VANILLA}
            self.gaps = [Gap(gap.name, gap.scope, gap.estimate) for gap in self.gaps]

    @property
    def verdict(self) -> Verdict:
        """The headline; that every decision is the same comes before any other."""
        if self.warning:
            title = self.warning[:1].upper() + self.warning[1:]
            return Verdict("unknown", title, [f"Accuracy is {percent(self.accuracy.value)}."])
        if not self.gaps:
            return unmeasured_verdict(self.accuracy, None, None)
        if self.against is None:
            return gaps_verdict(self.gaps, self.accuracy)
        return comparison_verdict(self.gaps, self.other, self.accuracy, self.against)


def reproduction_facts(results: pd.DataFrame, budgets: Mapping[str, float]) -> Facts | None:
    """Return the facts of the paper re-run; ``None`` without the part of any data set.

    Args:
        results: One row per model.
        budgets: Maximum loss of validation accuracy, by data set.
    """
    gaps: list[Gap] = []
    fronts, rejected = [], []
    outside = results[~results["include_sensitive"].astype(bool) & (results["method"] != "single vanilla")]
    for data, budget in budgets.items():
        runs = outside[outside["part"] == data]
        vanilla, fairrf = (runs[runs["method"] == method] for method in ("vanilla", "fairrf"))
        if vanilla.empty or fairrf.empty:
            continue
        chosen = choose(fairrf, vanilla, budget, "without S")
        rejected += [f"{data}, {reason}" for reason in rejections(fairrf, vanilla, budget)]
        gaps += _gaps(chosen, vanilla, data)
        fronts.append(Front(data, list(_method_points(runs, chosen)), _reproduction_rule(budgets)))
    if not gaps:
        return None
    return Facts(
        title="The paper, re-run",
        subject="FairRF, eta chosen without S",
        split=f"test split, mean of {results['seed'].nunique()} seeds",
        made=now(),
        verdict=comparison_verdict(gaps, "vanilla", None, None),
        other="vanilla",
        gaps=gaps,
        fronts=fronts,
        configuration=_configuration(results),
        versions=_versions(results),
        absent=_absent() | {"data": Absent("Three data sets: docs/data.md describes them.")},
        notes=[
            *rejection_lines(rejected),
            _SEEDS_NOTE,
            "S is out of the inputs of all models here; reproduction.md has the rest.",
            LINEAR_ONLY,
        ],
    )


def _gaps(fair: pd.DataFrame, vanilla: pd.DataFrame, scope: str) -> Iterator[Gap]:
    for name, key in _GAPS.items():
        measure = f"test_{key}"
        if measure in fair and fair[measure].notna().any():
            yield Gap(
                name,
                scope,
                Estimate(*mean_interval(fair[measure])),
                other=Estimate(*mean_interval(vanilla[measure])),
                difference=Estimate(*difference(fair, vanilla, measure)),
            )


def _points(summary: pd.DataFrame, chosen: Recommendation) -> Iterator[Point]:
    for (index, row), plain in zip(summary.iterrows(), is_vanilla(summary), strict=True):
        mark = "smallest gaps, S on validation" if _is(chosen.with_s, index) else ""
        mark = "same decision for everyone" if same_decision(row) else mark
        mark = "chosen" if _is(chosen.without_s, index) else mark
        yield Point(
            series=reference_name(row) if plain else str(row["method"]),
            label=setting_name(row),
            accuracy=float(row["test_acc"]),
            gaps={name: float(row[f"test_{key}"]) for name, key in _GAPS.items()},
            spread={name: float(row[f"test_{key}_std"]) for name, key in _GAPS.items()}
            | {"accuracy": float(row["test_acc_std"])},
            mark=mark,
        )


def _method_points(runs: pd.DataFrame, chosen: pd.DataFrame) -> Iterator[Point]:
    measures = ["test_acc", *(f"test_{key}" for key in _GAPS.values())]
    for _, of in runs.groupby(SETTING_COLUMNS, dropna=False, sort=False):
        mean, spread = of[measures].mean(), of[measures].std(ddof=1)
        first = of.iloc[0]
        yield Point(
            series=str(first["method"]),
            label=f"{first['method']}, eta {first['eta']:g}" if first["eta"] else str(first["method"]),
            accuracy=float(mean["test_acc"]),
            gaps={name: float(mean[f"test_{key}"]) for name, key in _GAPS.items()},
            spread={name: float(spread[f"test_{key}"]) for name, key in _GAPS.items()}
            | {"accuracy": float(spread["test_acc"])},
            mark="chosen" if set(of["key"]) == set(chosen["key"]) else "",
        )


def _runs_of(results: pd.DataFrame, setting: pd.Series) -> pd.DataFrame:
    same = (results[SETTING_COLUMNS] == setting[SETTING_COLUMNS]).all(axis=1)
    return results[same]


def _is(row: pd.Series | None, index: Any) -> bool:
    return row is not None and row.name == index


def _configuration(results: pd.DataFrame) -> dict[str, str]:
    names = dict.fromkeys([*SETTING_COLUMNS, "seed", *SHARED_COLUMNS])
    shown = {name: list(dict.fromkeys(results[name].dropna())) for name in names if name != "versions"}
    return {name: text for name, values in shown.items() if (text := ", ".join(map(str, values)))}


def _versions(results: pd.DataFrame) -> dict[str, str]:
    """Return the versions that the results were made with, whatever is installed by now."""
    versions: dict[str, str | None] = json.loads(results["versions"].iloc[0])
    return {package: found for package, found in versions.items() if found}


def _absent() -> dict[str, Absent]:
    return {"groups": _ONE_MODEL, "data": _NO_DATA, "training": _NO_TRAINING, "certificate": _NO_CERTIFICATE}


def _reproduction_rule(budgets: Mapping[str, float]) -> str:
    texts = ", ".join(f"{name} {100 * loss:g} points" for name, loss in budgets.items())
    return f"Chosen without S: the largest eta within a budget of validation accuracy ({texts})."
