from __future__ import annotations

from collections.abc import Callable

import pytest
from lightning import LightningModule, Trainer, seed_everything

from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import SyntheticDataModule, TabularDataModule
from tests.trainers import quiet_trainer


@pytest.fixture
def fit() -> Callable[..., Trainer]:
    def run(module: LightningModule, data: TabularDataModule, epochs: int) -> Trainer:
        seed_everything(0, verbose=False)
        trainer = quiet_trainer(max_epochs=epochs, callbacks=[LambdaUpdateCallback()])
        trainer.fit(module, data)
        return trainer

    return run


@pytest.fixture
def make_data() -> Callable[..., SyntheticDataModule]:
    """Return a maker of small synthetic data; options are those of the data module."""

    def make(**options: object) -> SyntheticDataModule:
        return SyntheticDataModule(**{"n_rows": 4000, "seed": 0, "batch_size": 200} | options)  # type: ignore[arg-type]

    return make
