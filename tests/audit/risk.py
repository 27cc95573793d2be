"""COMPAS with a label of three classes."""

from __future__ import annotations

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.compas import COMPASDataModule


class RiskDataModule(TabularDataModule):
    """COMPAS: is the risk score low (0), medium (1) or high (2)?"""

    name = "risk"
    target = "risk"
    sensitive = "race"
    columns = ("age", "c_charge_degree", "race", "sex", "priors_count", "duration")
    default_related = ("age", "sex")
    default_groups = COMPASDataModule.default_groups
    files = COMPASDataModule.files

    def read(self) -> pd.DataFrame:
        """Return the rows of COMPAS without the columns that determine the score."""
        table = COMPASDataModule(data_dir=self.data_dir).read()
        risk = table["score_text"].astype(str).map({"Low": 0, "Medium": 1, "High": 2})
        return table[list(self.columns)].assign(risk=risk)
