"""Membership is the same in several processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import SyntheticDataModule
from tests.ranks import run_on_ranks
from tests.surveys import write_survey
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about processes, workers and loggers


def train(devices: int, survey: Path) -> dict[str, Any]:
    """Train with membership for equal opportunity; return what each process must agree on."""
    seed_everything(1, verbose=False)
    data = SyntheticDataModule(n_rows=2001, seed=0, batch_size=200 // devices, membership=str(survey))
    module = FairRFModule(backbone="linear", eta=1.0, lr=0.05, given="positives")
    trainer = quiet_trainer(
        devices=devices,
        precision="64-true",
        max_epochs=2,
    )
    trainer.fit(module, data)
    assert trainer.world_size == devices
    return {"columns": data._parts["train"]["related"], "weights": dict(module.backbone.state_dict())}


def test_two_ranks_agree_with_one_process(tmp_path: Path) -> None:
    data = SyntheticDataModule(n_rows=2001, seed=0)
    path = write_survey(data, 300, tmp_path / "survey.csv")
    two = run_on_ranks(partial(train, survey=path), tmp_path)
    torch.testing.assert_close(two, train(1, path), rtol=0, atol=1e-6)
