"""Facts of many runs: of a grid, and of the paper re-run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from fairrf_lightning.callbacks.run_record import package_versions
from fairrf_lightning.experiments.choice import BUDGET, OPTIONS, choose
from fairrf_lightning.experiments.comparison import difference, mean_interval
from fairrf_lightning.experiments.recommend import SETTING_COLUMNS, Recommendation, recommend, summarise
from fairrf_lightning.report.facts import Absent, AccuracyAgainst, Data, Estimate, Facts, Front, Gap, Point
from fairrf_lightning.report.now import now
from fairrf_lightning.report.verdict import comparison_verdict, gaps_verdict, unmeasured_verdict
from fairrf_lightning.report.wording import LINEAR_ONLY

_GAPS = {"dEO": "eo_gap", "dDP": "dp_gap"}
_OPTIONS = ["backbone", "dropout", "statistic", "given", "rule", "related", "epochs", "pretrain_epochs"]
_OPTIONS += ["update_every", "lr", "data_options"]
_ONE_MODEL = Absent(
    "These are means over several models; rates of groups are those of one model.",
    "python train.py audit --ckpt_path RUN/checkpoints/best.ckpt --data NAME",
)
_NO_TRAINING = Absent(
    "The models of a grid are trained as one and leave no path behind; a single fit does.",
    "python train.py fit --data NAME --model.eta ETA\npython train.py report lightning_logs/version_0",
)
_NO_DATA = Absent("The results alone do not describe the data; the report that grid itself writes does.")
_NO_CERTIFICATE = Absent(
    "A certificate is about one checkpoint: the bound on dDP that holds without S.",
    "python train.py certify --ckpt_path RUN/checkpoints/best.ckpt --data NAME --proxies proxies.yaml",
)
NO_S = Absent(
    "The data do not say which group a row belongs to, so no gap can be measured.",
    "python train.py certify --ckpt_path RUN/checkpoints/best.ckpt --data NAME --proxies proxies.yaml",
)
_VANILLA = Absent(
    "No setting with a penalty keeps the accuracy that was asked for, so that eta 0 is taken.",
    "python train.py grid --data NAME --max_accuracy_loss 0.02",
)
_SEEDS_NOTE = "Intervals are t-intervals of the mean over seeds, each with its own split and start."


def grid_facts(results: pd.DataFrame, *, max_accuracy_loss: float = 0.01, data: Data | None = None) -> Facts:
    """Return the facts of a grid: the recommended setting against eta 0.

    Args:
        results: The grid's ``results.csv``.
        max_accuracy_loss: The budget of the recommendation.
        data: What is known of the data.
    """
    summary = summarise(results)
    chosen = recommend(summary, max_accuracy_loss)
    fair = _runs_of(results, chosen.without_s)
    vanilla = results[results["eta"] == 0]
    name, seeds = str(results["data"].iloc[0]), results["seed"].nunique()
    gaps = list(_gaps(fair, vanilla, name))
    accuracy, base = (Estimate(*mean_interval(of["test_acc"])) for of in (fair, vanilla))
    compared = fair["eta"].iloc[0] != 0
    against = AccuracyAgainst(base, Estimate(*difference(fair, vanilla, "test_acc")))
    if not compared:  # no penalty is affordable
        gaps = [Gap(gap.name, gap.scope, gap.estimate) for gap in gaps]
    rule = (
        f"Chosen without S: the largest eta that keeps mean validation accuracy within {max_accuracy_loss:g} "
        "of eta 0; of its betas the smallest mean penalty. Bars are standard deviations over seeds."
    )
    if gaps and compared:
        verdict = comparison_verdict(gaps, "vanilla", accuracy, against)
    else:
        verdict = gaps_verdict(gaps, accuracy) if gaps else unmeasured_verdict(accuracy, None, None)
    return Facts(
        title=f"Grid on {name}",
        subject=_setting(chosen.without_s),
        split=f"test split, mean of {seeds} seeds",
        made=now(),
        verdict=verdict,
        accuracy=accuracy,
        other="vanilla" if gaps and compared else "",
        accuracy_against=against if gaps and compared else None,
        gaps=gaps,
        fronts=[Front(f"{len(summary)} settings on {name}", list(_points(summary, chosen)), rule)]
        if gaps
        else [],
        data=data,
        configuration=_configuration(results),
        versions=package_versions(),
        absent=_absent()
        | ({"comparison": _VANILLA} if gaps else {"gaps": NO_S, "comparison": NO_S, "front": NO_S}),
        notes=[_SEEDS_NOTE, LINEAR_ONLY],
    )


def reproduction_facts(results: pd.DataFrame) -> Facts | None:
    """Return the facts of the paper re-run; ``None`` without the part of any data set."""
    gaps: list[Gap] = []
    fronts = []
    outside = results[~results["include_sensitive"].astype(bool) & (results["method"] != "single vanilla")]
    for data in BUDGET:
        runs = outside[outside["part"] == data]
        vanilla, fairrf = (runs[runs["method"] == method] for method in ("vanilla", "fairrf"))
        if vanilla.empty or fairrf.empty:
            continue
        chosen = choose(fairrf, vanilla, BUDGET[data], "without S")
        gaps += _gaps(chosen, vanilla, data)
        fronts.append(Front(data, list(_method_points(runs, chosen)), _reproduction_rule()))
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
        versions=package_versions(),
        absent=_absent() | {"data": Absent("Three data sets: docs/data.md describes them.")},
        notes=[
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
    for index, row in summary.iterrows():
        mark = "smallest gaps, S on validation" if _is(chosen.with_s, index) else ""
        mark = "chosen" if _is(chosen.without_s, index) else mark
        yield Point(
            series="vanilla" if row["eta"] == 0 else str(row["method"]),
            label=_setting(row),
            accuracy=float(row["test_acc"]),
            gaps={name: float(row[f"test_{key}"]) for name, key in _GAPS.items()},
            spread={name: float(row[f"test_{key}_std"]) for name, key in _GAPS.items()}
            | {"accuracy": float(row["test_acc_std"])},
            mark=mark,
        )


def _method_points(runs: pd.DataFrame, chosen: pd.DataFrame) -> Iterator[Point]:
    measures = ["test_acc", *(f"test_{key}" for key in _GAPS.values())]
    for _, of in runs.groupby(OPTIONS, dropna=False, sort=False):
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


def _setting(row: pd.Series) -> str:
    return f"eta {row['eta']:g}, beta {row['beta']:g}" if row["eta"] else "eta 0 (vanilla)"


def _is(row: pd.Series | None, index: Any) -> bool:
    return row is not None and row.name == index


def _configuration(results: pd.DataFrame) -> dict[str, str]:
    shown = {name: list(dict.fromkeys(results[name].dropna())) for name in ("eta", "beta", "seed", *_OPTIONS)}
    return {name: ", ".join(map(str, values)) for name, values in shown.items()}


def _absent() -> dict[str, Absent]:
    return {"groups": _ONE_MODEL, "data": _NO_DATA, "training": _NO_TRAINING, "certificate": _NO_CERTIFICATE}


def _reproduction_rule() -> str:
    budgets = ", ".join(f"{name} {100 * loss:g} points" for name, loss in BUDGET.items())
    return f"Chosen without S: the largest eta within a budget of validation accuracy ({budgets})."
