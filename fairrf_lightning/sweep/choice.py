"""The trials as a table, and which of them to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from fairrf_lightning.csv_files import write_csv
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.choose import (
    ACCURACY,
    BALANCED,
    CONSTANT,
    IDLE,
    MODELS,
    SHARE,
    STEPS,
    eligible,
    reference,
)
from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.sweep.space import Space
from fairrf_lightning.sweep.training import VANILLA


def trials_frame(trials: Sequence[FrozenTrial], space: Space, measure: str) -> pd.DataFrame:
    """Return one row for each finished trial, then one for the vanilla model of each structure.

    Columns are ``trial`` (empty for vanilla models), the space's parameters, ``val_acc``, the measure,
    ``val_balanced_acc`` and ``val_positive_share``, means over seeds with their ``_std``, and the numbers
    of ``models``, of ``constant_models``, which give every validation row the same decision, and of
    ``idle_models``, whose kept epoch is one of pretraining.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        reasons = [trial.user_attrs["diverged"] for trial in trials if "diverged" in trial.user_attrs]
        raise InputError(f"no trial could be measured: {(reasons or ['none is finished'])[0]}")
    rows = [_row(trial, trial.params, "", measure) | {"trial": trial.number} for trial in done]
    frame = pd.DataFrame([*rows, *_vanilla_rows(done, space, measure)])
    frame["eta"] = frame["eta"].fillna(space.setting({}).eta)  # where it is not searched
    return frame[["trial", *(name for name in frame.columns if name != "trial")]].astype({"trial": "Int64"})


class Choice(NamedTuple):
    """The chosen row of :func:`trials_frame`, and the rows that were rejected as collapsed, with reasons."""

    row: pd.Series
    rejected: list[str]


def choose(frame: pd.DataFrame, measure: str, max_accuracy_loss: float) -> Choice:
    """Return the row with the smallest measure among the eligible ones.

    Budget and eligibility are the grid's: relative to the best vanilla model.
    """
    # Trials have no adversary and no removed features.
    rows = frame.assign(adversary_lr=0.0, remove="")
    vanilla = reference(rows)
    if vanilla is None:
        raise InputError("the study has no vanilla model to compare with: name another --study.")
    within = eligible(rows, vanilla, max_accuracy_loss)
    order = within.settings.sort_values([measure, ACCURACY], ascending=[True, False], kind="stable")
    rejected = [f"{row_name(frame.loc[index])}: {reason}" for index, reason in within.rejected.items()]
    return Choice(frame.loc[order.index[0]], rejected)


def row_name(row: pd.Series) -> str:
    """Return the name of a row of :func:`trials_frame`."""
    return "vanilla" if pd.isna(row["trial"]) else f"trial {int(row['trial'])}, eta {row['eta']:.3g}"


def params_of(row: pd.Series, space: Space) -> dict[str, Any]:
    """Return the parameters of a row of :func:`trials_frame`, as plain values."""
    found = {name: row[name] for name in ("eta", *space.distributions) if not pd.isna(row.get(name))}
    return {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}


def write_trials(frame: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV; a reader, or another process, never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(frame, path)


def _vanilla_rows(trials: Sequence[FrozenTrial], space: Space, measure: str) -> Iterator[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for trial in trials:
        structure = space.structure(trial.params)
        if structure not in seen:
            seen.append(structure)
            yield _row(trial, structure, VANILLA, measure) | {"eta": 0.0, "trial": None}


def _row(trial: FrozenTrial, params: dict[str, Any], prefix: str, measure: str) -> dict[str, Any]:
    row = dict(params)
    for name in (ACCURACY, measure, BALANCED, SHARE):
        figures: list[float] = trial.user_attrs[prefix + name]
        row[name] = mean(figures)
        row[f"{name}_std"] = stdev(figures) if len(figures) > 1 else float("nan")
    shares: list[float] = trial.user_attrs[prefix + SHARE]
    idle = 0 if prefix == VANILLA else trial.user_attrs[STEPS].count(0)
    return row | {MODELS: len(shares), CONSTANT: sum(map(is_constant, shares)), IDLE: idle}
