"""Baselines that train one model at a time (ARL, KSMOTE), with the same rows of results as the stacks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from lightning import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torchmetrics.functional.classification import binary_auroc

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.experiments.results_file import ResultsFile, identity
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.experiments.stack import MakeData
from fairrf_lightning.module import FairRFModule

_ETAS = {"arl": 0.0, "ksmote": 0.6, "single vanilla": 0.0}


def run_singles(
    method: str, make_data: MakeData, seeds: list[int], schedule: Schedule, results: ResultsFile
) -> pd.DataFrame:
    """Train a baseline with each seed and return one row for each model; rows at hand are kept."""
    setting = Setting(eta=_ETAS[method], method=method)
    keys = []
    for seed in seeds:
        row = identity(make_data(seed=seed), setting, seed, schedule)
        keys.append(row["key"])
        if not results.has(row["key"]):
            module, data = _parts(method, make_data, seed, schedule)
            results.add([row | dict(_measures(module, data, schedule))])
    return results.select(keys)


def _parts(
    method: str, make_data: MakeData, seed: int, schedule: Schedule
) -> tuple[FairRFModule, TabularDataModule]:
    from fairrf_lightning.methods import KSMOTE, ARLModule  # noqa: PLC0415 - they need scikit-learn

    seed_everything(seed, verbose=False)
    if method == "arl":
        return ARLModule(lr=schedule.lr), make_data(seed=seed)
    module = FairRFModule(eta=_ETAS[method], lr=schedule.lr)
    return module, make_data(seed=seed, **({"ksmote": KSMOTE()} if method == "ksmote" else {}))


def _measures(module: FairRFModule, data: TabularDataModule, schedule: Schedule) -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val_objective")
        own = [PretrainCallback(epochs=schedule.pretrain_epochs), LambdaUpdateCallback(), best]
        trainer = Trainer(
            max_epochs=schedule.epochs,
            callbacks=own,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
        logged: dict[str, float] = {}
        for run in (trainer.validate, trainer.test):
            logged |= run(module, data, ckpt_path=best.best_model_path, weights_only=True, verbose=False)[0]
    yield "test_worst_group_auc", _worst_group_auc(module, data)
    for stage in ("val", "test"):
        yield from ((f"{stage}_{name}", logged[f"{stage}_{name}"]) for name in ("acc", "loss", "objective"))
        for gap in ("eo", "dp", "eodds"):
            yield f"{stage}_{gap}_gap", logged[f"{stage}_{gap}_gap"]
            if data.num_groups == 2:  # then the mean deviation is half the gap
                yield f"{stage}_{gap}_mean_deviation", logged[f"{stage}_{gap}_gap"] / 2


def _worst_group_auc(module: FairRFModule, data: TabularDataModule) -> float:
    """Return the smallest AUC of a group on the test split."""
    with torch.no_grad():
        rows = [(module(b["inputs"]), b["target"].long(), b["groups"]) for b in data.test_dataloader()]
    logits, target, groups = (torch.cat(column) for column in zip(*rows, strict=True))
    chosen = [groups == group for group in range(data.num_groups)]
    return min(float(binary_auroc(logits[of], target[of])) for of in chosen)
