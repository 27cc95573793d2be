"""Accuracy-fairness fronts: what a method can reach by turning its penalty up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fairrf_lightning.experiments.setting import SETTING_COLUMNS

_AXES = ["test_acc", "test_eo_gap", "test_dp_gap"]


def front(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean measures of each setting that no other setting of the same runs dominates."""
    means = runs.groupby(SETTING_COLUMNS, dropna=False)[_AXES].mean().reset_index()
    points = means[_AXES].to_numpy(dtype=float) * np.array([-1.0, 1.0, 1.0])
    worse = (points[:, None] >= points[None]).all(-1) & (points[:, None] > points[None]).any(-1)
    kept: pd.DataFrame = means.loc[~np.any(worse, axis=1)]
    return kept.sort_values(by="test_acc").reset_index(drop=True)
