"""Accuracy-fairness fronts: what a method can reach by turning its penalty up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fairrf_lightning.experiments.setting import SETTING_COLUMNS

_AXES = ["test_acc", "test_eo_gap", "test_dp_gap"]


def hypervolume(runs: pd.DataFrame, reference: tuple[float, float]) -> dict[str, float]:
    """Return the area between a front and a reference point, for accuracy against dEO and against dDP.

    Args:
        runs: Runs of one method.
        reference: The accuracy and the gap that count as worthless.
    """
    means = runs.groupby(SETTING_COLUMNS, dropna=False)[_AXES].mean()
    accuracy = means["test_acc"].to_numpy()
    return {gap: _area(accuracy, means[f"test_{gap}"].to_numpy(), reference) for gap in ("eo_gap", "dp_gap")}


def _area(accuracy: np.ndarray, gap: np.ndarray, reference: tuple[float, float]) -> float:
    useful = (accuracy > reference[0]) & (gap < reference[1])
    order = np.argsort(gap[useful])
    accuracy, gap = accuracy[useful][order], gap[useful][order]
    if not len(gap):
        return 0.0
    heights = np.maximum.accumulate(accuracy) - reference[0]
    widths = np.diff(np.append(gap, reference[1]))
    return float((heights * widths).sum())
