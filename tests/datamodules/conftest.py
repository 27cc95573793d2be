from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from fairrf_lightning.datamodules import (
    AdultDataModule,
    COMPASDataModule,
    LSACDataModule,
    SyntheticDataModule,
    TabularDataModule,
)
from fairrf_lightning.errors import InputError

collect_ignore = ["gcs_server.py"]  # a program of slow tests, whose library `.[test]` does not have

_SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
if _SHARED_DATA.is_dir():
    os.environ.setdefault("FAIRRF_DATA", str(_SHARED_DATA))


@pytest.fixture(scope="session")
def adult() -> AdultDataModule:
    data = AdultDataModule(seed=0)
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.fixture(scope="session")
def adult_table(adult: AdultDataModule) -> pd.DataFrame:
    return adult.read()


@pytest.fixture(scope="session")
def compas() -> COMPASDataModule:
    data = COMPASDataModule(seed=0)
    data.prepare_data()
    return data


@pytest.fixture(scope="session")
def lsac() -> LSACDataModule:
    data = LSACDataModule(seed=0)
    try:
        data.prepare_data()
    except InputError as error:
        pytest.skip(f"no source has the LSAC data: {error}")
    return data


@pytest.fixture(scope="session")
def synthetic() -> SyntheticDataModule:
    return SyntheticDataModule(seed=0)


@pytest.fixture(params=["adult", "compas", "lsac", "synthetic"])
def any_data(request: pytest.FixtureRequest) -> TabularDataModule:
    data: TabularDataModule = request.getfixturevalue(request.param)
    return data
