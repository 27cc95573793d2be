"""Choosing a setting on the validation split, with and without the sensitive attribute.

Runs are rows of a data frame: options of the setting (``method``, ``eta``, ``beta``, ...), ``seed``, and
``val_`` and ``test_`` measures.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import pandas as pd

from fairrf_lightning.experiments.eligibility import (
    ACCURACY,
    BALANCED,
    SHARE,
    Eligible,
    eligible,
    means_over_seeds,
    why_not,
)
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, setting_name

Rule: TypeAlias = Literal["without S", "with S"]

# Points of validation accuracy that fairness may cost. The paper's own losses are 2.4, 2.0 and 0.9 points.
BUDGET = {"adult": 0.01, "compas": 0.025, "lsac": 0.01}
_GAPS = ["val_eo_gap", "val_dp_gap"]


def choose(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: Rule) -> pd.DataFrame:
    """Return the runs of the setting that the rule chooses.

    Without S: the strongest penalty, the largest eta, whose mean validation accuracy is within the
    budget of the vanilla model's and which has not collapsed; among equals, as those of ARL, the most
    accurate. With S, as the paper: among the same settings, the smallest sum of dEO and dDP on
    validation. If there is no such setting, the most accurate one.

    Args:
        runs: Runs of one method with several settings.
        vanilla: Runs of the vanilla model with the same seeds.
        budget: Validation accuracy that may be lost.
        rule: ``"without S"`` or ``"with S"``.
    """
    means = _means(runs)
    affordable = _eligible(means, vanilla, budget).settings
    if affordable.empty:
        best = means.loc[[means[ACCURACY].idxmax()]]
    elif rule == "without S":
        strongest = affordable[affordable["eta"] == affordable["eta"].max()]
        best = strongest.loc[[strongest[ACCURACY].idxmax()]]
    else:
        best = affordable.loc[[affordable[_GAPS].sum(axis=1).idxmin()]]
    chosen = runs.merge(best[SETTING_COLUMNS], on=SETTING_COLUMNS)
    return chosen.sort_values("seed").reset_index(drop=True)


def affordable_choices(
    runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: Rule = "without S"
) -> dict[str, pd.DataFrame]:
    """Return for each method the runs that the rule chooses, if the method has an eligible setting."""
    methods = runs[runs["method"] != "vanilla"].groupby("method")
    return {
        str(name): choose(of, vanilla, budget, rule)
        for name, of in methods
        if not _eligible(_means(of), vanilla, budget).settings.empty
    }


def rejections(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float) -> list[str]:
    """Return the settings within the budget that may not be chosen, with the reason."""
    means = _means(runs[runs["method"] != "vanilla"])
    rejected = _eligible(means, vanilla, budget).rejected
    return [
        f"{means.loc[index, 'method']}, {setting_name(means.loc[index])}: {reason}"
        for index, reason in rejected.items()
    ]


def may_be_chosen(runs: pd.DataFrame, vanilla: pd.DataFrame) -> bool:
    """Return whether the runs of one setting have not collapsed on validation, and are no vanilla models."""
    return not why_not(_means(runs).iloc[0], _means(vanilla).iloc[0])


def _means(runs: pd.DataFrame) -> pd.DataFrame:
    return means_over_seeds(runs, SETTING_COLUMNS, [ACCURACY, BALANCED, SHARE, *_GAPS])


def _eligible(means: pd.DataFrame, vanilla: pd.DataFrame, budget: float) -> Eligible:
    # The vanilla runs are a table of their own: no index of the other one is theirs.
    return eligible(means, _means(vanilla).iloc[0].rename("vanilla"), budget)
