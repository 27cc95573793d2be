"""Facts of the reproduced evaluation, for its HTML page and card."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from fairrf_lightning.experiments.choose import choose, rejection_lines, rejections
from fairrf_lightning.experiments.setting import SETTING_COLUMNS
from fairrf_lightning.report.facts import Absent, Facts, Front, MeasuredGap, Point
from fairrf_lightning.report.sources import (
    SEEDS_NOTE,
    installed_versions,
    mean_point,
    results_configuration,
    seed_gaps,
)
from fairrf_lightning.report.text import LINEAR_ONLY, comparison_verdict, now
from paper.numbers import BUDGET


def reproduction_facts(results: pd.DataFrame) -> Facts | None:
    """Return the facts of the reproduction; ``None`` if no data set was part of it."""
    gaps: list[MeasuredGap] = []
    fronts, rejected = [], []
    budgets = ", ".join(f"{name} {100 * loss:g} points" for name, loss in BUDGET.items())
    rule = f"Chosen without S: the largest eta within a budget of validation accuracy ({budgets})."
    outside = results[~results["include_sensitive"].astype(bool) & (results["method"] != "single vanilla")]
    for data in BUDGET:
        runs = outside[outside["part"] == data]
        vanilla, fairrf = (runs[runs["method"] == method] for method in ("vanilla", "fairrf"))
        if vanilla.empty or fairrf.empty:
            continue
        chosen = choose(fairrf, vanilla, BUDGET[data], "without S")
        rejected += [f"{data}, {reason}" for reason in rejections(fairrf, vanilla, BUDGET[data])]
        gaps += seed_gaps(chosen, vanilla, data)
        fronts.append(Front(data, list(_points(runs, chosen)), rule))
    if not gaps:
        return None
    several = "These are results of many models; the report of a single run has this."
    absent = dict.fromkeys(("groups", "training", "certificate"), Absent(several))
    return Facts(
        title="Reproduction of the paper",
        subject="FairRF, eta chosen without S",
        split=f"test split, mean of {results['seed'].nunique()} seeds",
        made=now(),
        verdict=comparison_verdict(gaps, "vanilla", None, None),
        other="vanilla",
        gaps=gaps,
        fronts=fronts,
        configuration=results_configuration(results),
        versions=installed_versions(results["versions"].iloc[0]),
        absent=absent | {"data": Absent("Three data sets: docs/data.md describes them.")},
        limits=[
            *rejection_lines(rejected),
            SEEDS_NOTE,
            "S is not an input of any model here; reproduction.md has the other results.",
            LINEAR_ONLY,
        ],
    )


def _points(runs: pd.DataFrame, chosen: pd.DataFrame) -> Iterator[Point]:
    measures = [name for name in runs.columns if name.startswith("test_")]
    for _, of in runs.groupby(SETTING_COLUMNS, dropna=False, sort=False):
        first, values = of.iloc[0], of[measures]
        row = pd.concat([values.mean(), values.std(ddof=1).add_suffix("_std")])
        method, eta = str(first["method"]), first["eta"]
        mark = "chosen" if set(of["key"]) == set(chosen["key"]) else ""
        yield mean_point(row, series=method, label=f"{method}, eta {eta:g}" if eta else method, mark=mark)
