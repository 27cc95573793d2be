"""Choosing among the settings of a method, each against vanilla runs of the same seeds."""

from __future__ import annotations

import math

import pandas as pd

from fairrf_lightning.experiments.choose import (
    ChoiceRule,
    Eligible,
    eligible,
    most_accurate,
    preferred,
    summarise,
)
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, setting_name


def choose(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: ChoiceRule) -> pd.DataFrame:
    """Return the runs of the setting that the rule of :func:`preferred` chooses among the eligible ones.

    If no setting is eligible, it is the most accurate one. The vanilla runs have the same seeds.
    """
    best = preferred(_eligible(runs, vanilla, budget).settings, rule)
    chosen = most_accurate(summarise(runs)) if best is None else best
    same = runs.merge(chosen[SETTING_COLUMNS].to_frame().T.astype(runs[SETTING_COLUMNS].dtypes))
    return same.sort_values("seed").reset_index(drop=True)


def affordable_choices(
    runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: ChoiceRule = "without S"
) -> dict[str, pd.DataFrame]:
    """Return the runs that :func:`choose` returns for each method with an eligible setting."""
    methods = runs[runs["method"] != "vanilla"].groupby("method")
    return {
        str(name): choose(of, vanilla, budget, rule)
        for name, of in methods
        if is_eligible(of, vanilla, budget)
    }


def rejections(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float) -> list[str]:
    """Return the settings within the budget that are not eligible, with the reason."""
    return _eligible(runs[runs["method"] != "vanilla"], vanilla, budget).rejected


def is_eligible(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float = math.inf) -> bool:
    """Return whether a setting among the runs is eligible, by default whatever its accuracy."""
    return not _eligible(runs, vanilla, budget).settings.empty


def _eligible(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float) -> Eligible:
    # The vanilla runs are a table of their own: their index must not match one of the summary.
    reference = summarise(vanilla).iloc[0].rename("vanilla")
    return eligible(summarise(runs), reference, budget, lambda row: f"{row['method']}, {setting_name(row)}")
