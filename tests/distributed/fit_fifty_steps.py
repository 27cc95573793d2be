"""Started by test_ddp.py under torchrun: 50 optimiser steps on Adult and a test run, for each case."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import partial
from typing import Any

import torch
from lightning import Trainer, seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import AdultDataModule
from fairrf_lightning.penalty import Given

GLOBAL_BATCH = 256
CASES: list[tuple[Any, Given]] = [
    ("64-true", "all"),
    ("64-true", "positives"),
    ("32-true", "all"),
    ("bf16-mixed", "all"),
]
Result = dict[str, Any]


def train(devices: int, precision: Any, given: Given) -> Result:
    """Return weights, lambda and test metrics."""
    seed_everything(1, verbose=False)
    data = AdultDataModule(batch_size=GLOBAL_BATCH // devices)
    module = FairRFModule(backbone=partial(MLP, dropout=0.0), eta=0.6, given=given)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        precision=precision,
        max_steps=50,
        callbacks=[PretrainCallback(steps=5), LambdaUpdateCallback(beta=0.05, every_n_steps=10)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    weights = {name: value.cpu() for name, value in module.backbone.state_dict().items()}
    metrics = trainer.test(module, data, verbose=False)[0]
    assert trainer.world_size == devices
    return {
        "weights": weights,
        "lambda": module.penalty.weights,
        "metrics": metrics,
        "rows": data.split_sizes["test"],
    }


def train_all(devices: int) -> dict[str, Result]:
    """Train each case once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {f"{precision} {given}": train(devices, precision, given) for precision, given in CASES}


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = train_all(int(os.environ["WORLD_SIZE"]))
    if os.environ["RANK"] == "0":
        torch.save(results, sys.argv[1])


if __name__ == "__main__":
    main()
