"""Choosing a setting on the validation split, with and without the sensitive attribute.

Runs are rows of a data frame: options of the setting (``method``, ``eta``, ``beta``, ...), ``seed``, and
``val_`` and ``test_`` measures.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import pandas as pd

Rule: TypeAlias = Literal["without S", "with S"]

# Points of validation accuracy that fairness may cost. The paper's own losses are 2.4, 2.0 and 0.9 points.
BUDGET = {"adult": 0.01, "compas": 0.025, "lsac": 0.01}
OPTIONS = ["method", "eta", "beta", "related", "rule", "statistic", "given", "backbone", "adversary_lr"]


def choose(runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: Rule) -> pd.DataFrame:
    """Return the runs of the setting that the rule chooses.

    Without S: the strongest penalty, the largest eta, whose mean validation accuracy is within the
    budget of the vanilla model's; among equals, as those of ARL, the most accurate. With S, as the
    paper: among those within the budget, the smallest sum of dEO and dDP on validation. If none is
    within the budget, the most accurate one.

    Args:
        runs: Runs of one method with several settings.
        vanilla: Runs of the vanilla model with the same seeds.
        budget: Validation accuracy that may be lost.
        rule: ``"without S"`` or ``"with S"``.
    """
    means = runs.groupby(OPTIONS, dropna=False)[["val_acc", "val_eo_gap", "val_dp_gap"]].mean().reset_index()
    affordable = means[means["val_acc"] >= vanilla["val_acc"].mean() - budget]
    if affordable.empty:
        best = means.loc[[means["val_acc"].idxmax()]]
    elif rule == "without S":
        strongest = affordable[affordable["eta"] == affordable["eta"].max()]
        best = strongest.loc[[strongest["val_acc"].idxmax()]]
    else:
        best = affordable.loc[[(affordable["val_eo_gap"] + affordable["val_dp_gap"]).idxmin()]]
    chosen = runs.merge(best[OPTIONS], on=OPTIONS)
    return chosen.sort_values("seed").reset_index(drop=True)


def affordable_choices(
    runs: pd.DataFrame, vanilla: pd.DataFrame, budget: float, rule: Rule = "without S"
) -> dict[str, pd.DataFrame]:
    """Return for each method the runs that the rule chooses, if they are within the budget on validation."""
    methods = runs[runs["method"] != "vanilla"].groupby("method")
    chosen = {str(name): choose(of, vanilla, budget, rule) for name, of in methods}
    least = vanilla["val_acc"].mean() - budget
    return {name: of for name, of in chosen.items() if of["val_acc"].mean() >= least}
