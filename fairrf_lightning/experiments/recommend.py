"""Which setting of a grid to take: by a rule without S, and for comparison by one with S."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from fairrf_lightning.errors import InputError

SETTING_COLUMNS = ["method", "eta", "beta", "related", "removed", "rule", "statistic", "given", "backbone"]


@dataclass(frozen=True)
class Recommendation:
    """Two rows of :func:`summarise`.

    Args:
        without_s: The largest eta whose validation accuracy is within the budget.
        with_s: The smallest ``dEO + dDP`` on validation within the same budget; it needs S there, and
            is ``None`` where no gap is known.
    """

    without_s: pd.Series
    with_s: pd.Series | None


def summarise(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of each setting's measures.

    Columns are ``<measure>`` and ``<measure>_std``.
    """
    measures = [name for name in results.columns if name.startswith(("val_", "test_", "lambda/"))]
    grouped = results.groupby(SETTING_COLUMNS, sort=False)[measures]
    return grouped.mean().join(grouped.std(ddof=1).add_suffix("_std")).reset_index()


def recommend(summary: pd.DataFrame, max_accuracy_loss: float = 0.01) -> Recommendation:
    """Choose within a budget of validation accuracy against the settings with eta 0.

    Args:
        summary: What :func:`summarise` returned; with a setting of eta 0.
        max_accuracy_loss: How much lower than that of eta 0 the mean validation accuracy may be.
    """
    affordable: Any = within_budget(summary, max_accuracy_loss)  # the stubs cannot tell a row from a table
    strongest = affordable[affordable["eta"] == affordable["eta"].max()]
    gaps = affordable.reindex(columns=["val_eo_gap", "val_dp_gap"]).sum(axis=1, skipna=False)
    without_s = strongest.loc[_mean_penalty(strongest).idxmin()]
    with_s = affordable.loc[gaps.idxmin()] if gaps.notna().any() else None
    return Recommendation(without_s, with_s)


def within_budget(summary: pd.DataFrame, max_accuracy_loss: float) -> pd.DataFrame:
    """Return the settings whose validation accuracy is near enough to the best one of eta 0."""
    vanilla = summary.loc[summary["eta"] == 0, "val_acc"]
    if vanilla.empty:
        raise InputError("the budget of accuracy is relative to eta 0: add 0 to the etas.")
    affordable: pd.DataFrame = summary[summary["val_acc"] >= vanilla.max() - max_accuracy_loss]
    return affordable


def _mean_penalty(summary: pd.DataFrame) -> pd.Series:
    """Return the mean of the related features' R on validation: S-free, and the same for all beta."""
    columns = [name for name in summary.columns if name.startswith("val_penalty/")]
    return summary[[name for name in columns if not name.endswith("_std")]].mean(axis=1)
