from __future__ import annotations

import pandas as pd
import pytest

from fairrf_lightning.datamodules import AdultDataModule


@pytest.fixture(scope="session")
def adult() -> AdultDataModule:
    data = AdultDataModule(seed=0)
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.fixture(scope="session")
def adult_table(adult: AdultDataModule) -> pd.DataFrame:
    return adult.read()
