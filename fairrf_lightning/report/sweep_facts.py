"""Facts of a sweep: its trials on the validation rows, and the one that was chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

import pandas as pd

from fairrf_lightning.experiments.eligibility import rejection_lines, same_decision
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE
from fairrf_lightning.report.facts import Absent, Data, Estimate, Facts, Front, Point, Verdict
from fairrf_lightning.report.now import now
from fairrf_lightning.report.wording import LINEAR_ONLY, percent, points

_GAPS = {f"val_{gap.key}": gap.label for gap in GAPS.values()}
_ACCURACY = "val_acc"


def sweep_facts(
    trials: pd.DataFrame,
    chosen: pd.Series,
    measure: str,
    *,
    data: Data,
    folder: str,
    max_accuracy_loss: float,
    rejected: Sequence[str],
    configuration: Mapping[str, str],
) -> Facts:
    """Return the facts of a sweep.

    Args:
        trials: One row for each trial and vanilla model: ``trial``, parameters, ``val_acc``, the measure.
        chosen: The row that was chosen.
        measure: The measure that was made small.
        data: What is known of the data.
        folder: The sweep's folder, for the commands to go on with.
        max_accuracy_loss: The budget of the choice.
        rejected: The trials that were rejected as collapsed, with the reason.
        configuration: The sweep's options.
    """
    best = trials.loc[trials["trial"].isna(), _ACCURACY].max()
    accuracy = Estimate(float(chosen[_ACCURACY]))
    name = _GAPS.get(measure, measure)
    rule = (
        f"Chosen: the smallest {name} that keeps mean validation accuracy within {max_accuracy_loss:g} of "
        f"the best vanilla model, with a {COLLAPSE_RULE}. "
        + ("S of the validation rows was used." if measure in _GAPS else "S played no part in it.")
    )
    size = f"{chosen[measure]:.4f}" if measure not in _GAPS else points(float(chosen[measure]))
    sentences = [
        f"Validation accuracy {percent(accuracy.value)} against {percent(best)} of the best vanilla model.",
        f"{name} is {size}. The test rows were not touched: what it reaches there is not known yet.",
    ]
    fit = Absent(
        "A sweep looks at validation rows only. Train and test the chosen setting, then report that run.",
        f"python train.py fit --config {quote(f'{folder}/chosen.yaml')}",
    )
    return Facts(
        title=f"Sweep on {data.name}",
        subject=_label(chosen),
        split="validation split",
        made=now(),
        verdict=_verdict(chosen, sentences),
        accuracy=accuracy,
        fronts=[
            Front(f"{trials['trial'].notna().sum()} trials", list(_points(trials, chosen, measure)), rule)
        ],
        data=data,
        configuration=configuration,
        versions={name: found for name, found in json.loads(configuration["versions"]).items() if found},
        absent=dict.fromkeys(("gaps", "groups", "comparison", "training", "certificate"), fit),
        notes=[*rejection_lines(rejected), LINEAR_ONLY],
    )


def _verdict(chosen: pd.Series, sentences: Sequence[str]) -> Verdict:
    if warning := same_decision(chosen):
        return Verdict("unknown", warning[:1].upper() + warning[1:], sentences)
    title = f"{_label(chosen)} is chosen; how fair it is, its test will show"
    return Verdict("unknown", title, sentences)


def _points(trials: pd.DataFrame, chosen: pd.Series, measure: str) -> Iterator[Point]:
    name = _GAPS.get(measure, measure)
    for index, row in trials.iterrows():
        yield Point(
            series="vanilla" if pd.isna(row["trial"]) else "trial",
            label=_label(row),
            accuracy=float(row[_ACCURACY]),
            gaps={name: float(row[measure])},
            spread={
                "accuracy": float(row.get(f"{_ACCURACY}_std", math.nan)),
                name: float(row.get(f"{measure}_std", math.nan)),
            },
            mark="chosen" if index == chosen.name else "",
        )


def _label(row: pd.Series) -> str:
    return "Vanilla" if pd.isna(row["trial"]) else f"Trial {int(row['trial'])}, eta {row['eta']:.3g}"
