"""The report from Python: other modules, other loggers, data without groups."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import Tensor

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.tracking import WandbLogger, WandbReport
from fairrf_lightning.tracking.wandb import pareto_charts
from tests.tracking.conftest import finish
from tests.tracking.run_file import RunFile, read_run
from tests.trainers import quiet_trainer


def _batches(**more: Tensor) -> TensorBatches:
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return TensorBatches({"inputs": inputs, "target": (inputs[:, 0] > 0).float(), **more}, batch_size=20)


def _module() -> FairRFModule:
    return FairRFModule(3, {"age": [0], "zip": [2]}, backbone=torch.nn.Linear(3, 1), num_groups=2)


def _trainer(folder: Path, *callbacks: Callback, logger: Logger | None = None, **options: Any) -> Trainer:
    options = {"enable_checkpointing": True, "log_every_n_steps": 1, "max_epochs": 1} | options
    logger = logger or WandbLogger(save_dir=folder)
    return quiet_trainer(default_root_dir=folder, logger=logger, callbacks=list(callbacks), **options)


def _read(folder: Path) -> RunFile:
    finish()
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return read_run(file)


def test_without_a_datamodule_groups_go_by_number(tmp_path: Path) -> None:
    batches = _batches(groups=torch.arange(60) % 2)
    trainer = _trainer(tmp_path, WandbReport(), LambdaUpdateCallback(beta=0.3, every_n_steps=1))
    module = _module()
    trainer.fit(module, batches, batches)
    trainer.test(module, batches, verbose=False)
    run = _read(tmp_path)
    assert {"val_true_positive_rate/0", "val_true_positive_rate/1"} <= set(run.summary)
    assert run.metrics["val_true_positive_rate/1"].step_metric == "epoch"
    assert run.config["beta"] == 0.3
    assert "data" not in run.config
    assert run.config["fairness"]["related"] == ["age", "zip"]


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`.*", "ignore:.*validation_step.*")
def test_data_without_groups_have_a_report_without_gaps(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, WandbReport(), enable_checkpointing=False)
    trainer.fit(_module(), _batches(), _batches())
    trainer.test(_module(), _batches(), verbose=False)
    run = _read(tmp_path)
    assert not any(name.startswith(("pareto/", "test_groups/")) for name in run.summary)
    assert run.summary["chosen/val_acc"] == run.values("val_acc")[-1]
    assert "test/results" in run.summary


class Foreign(LightningModule):
    """A module that knows nothing of us but holds a penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
        self.fairness = RelatedFeaturePenalty({"age": [0]})

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net(batch["inputs"])[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])
        self.log("train_loss", loss)
        penalty: Tensor = self.fairness(logits, batch["inputs"])
        return loss + penalty

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_foreign_module_keeps_its_axes_and_has_its_penalty_described(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, WandbReport())
    trainer.fit(Foreign(), _batches())
    run = _read(tmp_path)
    assert run.config["fairness"]["related"] == ["age"]
    assert run.metrics["lambda/age"].step_metric == "epoch"
    assert "train_loss" not in run.metrics
    assert len(run.values("train_loss")) == 3


def test_it_does_nothing_for_other_loggers(tmp_path: Path) -> None:
    batches = _batches(groups=torch.arange(60) % 2)
    trainer = _trainer(tmp_path, WandbReport(), logger=CSVLogger(tmp_path))
    trainer.fit(_module(), batches, batches)
    assert not any("true_positive_rate" in name for name in trainer.callback_metrics)
    assert not list(tmp_path.glob("wandb"))


def test_a_checkpoint_does_not_ask_for_it_later() -> None:
    assert not WandbReport().state_dict()  # Lightning warns where a callback with a state is missing


def test_epochs_without_a_gap_are_not_drawn() -> None:
    history = [
        {"epoch": 0, "val_acc": 0.6, "val_eo_gap": math.nan},
        {"epoch": 1, "val_acc": 0.7, "val_eo_gap": 0.1},
        {"epoch": 2, "val_acc": 0.6, "val_eo_gap": 0.2},
    ]
    (chart,) = pareto_charts(history, history[1]).values()
    assert chart.table.data == [[0.1, 0.7, 1, True, True], [0.2, 0.6, 2, False, False]]
