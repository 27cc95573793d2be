"""Eligible settings: near enough to the vanilla model in accuracy, not collapsed, and in effect.

With rare labels a large eta ends in a model that gives everyone the same decision. Its gaps are 0 and its
accuracy is within any budget, so accuracy alone cannot keep it from being chosen. And a model whose kept
epoch is one of pretraining is a vanilla model, whatever its eta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.setting import is_vanilla
from fairrf_lightning.metrics.decisions import SAME_DECISION, has_collapsed, is_constant
from fairrf_lightning.notices import NEVER_ON

ACCURACY = "val_acc"
BALANCED = "val_balanced_acc"
SHARE = "val_positive_share"
STEPS = "method_steps"
# Numbers of models of a setting: in all, of those that give every validation row the same decision, and of
# those that neither penalty nor adversary had a step in.
MODELS, CONSTANT, IDLE = "models", "constant_models", "idle_models"
_MAX_NAMED = 5


class Eligible(NamedTuple):
    """The settings that may be chosen.

    Args:
        settings: Those within the budget of accuracy that are not rejected.
        rejected: Why others within the budget were rejected, by their index.
    """

    settings: pd.DataFrame
    rejected: dict[Any, str]


def means_over_seeds(runs: pd.DataFrame, options: list[str], measures: list[str]) -> pd.DataFrame:
    """Return the means of each setting's runs, with the numbers of their models.

    Args:
        runs: One row for each model.
        options: The columns that tell settings apart.
        measures: The columns to average.
    """
    needed = [*options, *measures, SHARE, STEPS]
    if missing := [name for name in needed if name not in runs]:
        raise InputError(
            f"the results have no column {missing[0]}: an earlier version wrote them; train them again."
        )
    idle = (runs[STEPS] == 0) & ((runs["eta"] > 0) | (runs["adversary_lr"] > 0))
    flags = {CONSTANT: runs[SHARE].map(is_constant), IDLE: idle}
    grouped = runs.assign(**flags).groupby(options, sort=False, dropna=False)
    counts = {MODELS: grouped.size(), **{name: grouped[name].sum() for name in flags}}
    return grouped[measures].mean().assign(**counts).reset_index()


def reference(means: pd.DataFrame) -> pd.Series | None:
    """Return the vanilla setting that others are compared with, if there is one.

    It is the most accurate one on validation; one with a constant model only if all have one.
    """
    vanilla = means[is_vanilla(means)]
    if vanilla.empty:
        return None
    sound = vanilla[vanilla[CONSTANT] == 0]
    candidates = vanilla if sound.empty else sound
    return candidates.sort_values(ACCURACY, kind="stable").iloc[-1]


def eligible(means: pd.DataFrame, vanilla: pd.Series, max_accuracy_loss: float) -> Eligible:
    """Return which settings may be chosen.

    Args:
        means: One row for each setting, from :func:`means_over_seeds` or with the same columns.
        vanilla: The row of the vanilla setting; it always may be chosen itself.
        max_accuracy_loss: How much lower than its own the mean validation accuracy may be.
    """
    affordable = means[means[ACCURACY] >= vanilla[ACCURACY] - max_accuracy_loss]
    reasons = {index: why_not(row, vanilla) for index, row in affordable.iterrows()}
    rejected = {index: reason for index, reason in reasons.items() if reason and index != vanilla.name}
    return Eligible(affordable.drop(index=list(rejected)), rejected)


def why_not(row: pd.Series, vanilla: pd.Series | None) -> str:
    """Return why a setting may not be chosen whatever its accuracy, or an empty text if it may.

    Args:
        row: The setting's means over seeds.
        vanilla: Those of the vanilla setting; without it a collapse is recognised by constant models only.
    """
    if row[IDLE]:
        what = NEVER_ON if row["eta"] else "the adversary never stepped"
        return f"{row[IDLE]:g} of {row[MODELS]:g} models are vanilla ones: {what} before the kept epoch ended"
    if row[CONSTANT]:
        return f"{row[CONSTANT]:g} of {row[MODELS]:g} models give everyone the same decision"
    if vanilla is None or not has_collapsed(row[BALANCED], row[SHARE], vanilla[BALANCED], vanilla[SHARE]):
        return ""
    return f"{_decisions(row)}; the vanilla model has {_decisions(vanilla)}"


def _decisions(row: pd.Series) -> str:
    return f"balanced accuracy {row[BALANCED]:.3f} and {100 * row[SHARE]:.1f} % positive decisions"


def same_decision(row: pd.Series) -> str:
    """Return the warning that a setting's gaps mean nothing, or an empty text if they do."""
    if row[CONSTANT] == row[MODELS] or is_constant(row.get("test_positive_share", float("nan"))):
        return SAME_DECISION
    if row[CONSTANT]:
        return f"in {row[CONSTANT]:g} of {row[MODELS]:g} models: {SAME_DECISION}"
    return ""


def rejection_lines(rejected: Sequence[str]) -> list[str]:
    """Return a line for each rejected setting; of many, for the first ones."""
    lines = [f"Rejected: {reason}." for reason in rejected]
    more = len(lines) - _MAX_NAMED
    return lines if more <= 0 else [*lines[:_MAX_NAMED], f"Rejected: {more} more settings."]
