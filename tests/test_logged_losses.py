"""What FairRFModule logs of an epoch's training: means over its batches, computed again by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import Linear
from fairrf_lightning.datamodules import TensorBatches


class Recorder(FairRFModule):
    """Keeps the loss and the penalty of each batch, computed apart."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[float, float]] = []

    def training_step(self, batch: Any) -> Tensor:
        with torch.no_grad():
            self.penalty.eval()  # it does not count these rows a second time
            logits = self(batch["inputs"])
            penalty = self.penalty(logits, batch["inputs"])
            self.penalty.train()
        self.seen.append((float(self.task_loss(logits, batch["target"])), float(penalty)))
        return super().training_step(batch)


class Logged(Callback):
    """Keeps what was logged of each epoch of training; the module logs it after this epoch's end."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def keep(self, trainer: Trainer) -> None:
        if "train_loss" in trainer.logged_metrics:
            self.values.append({name: float(value) for name, value in trainer.logged_metrics.items()})

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        del pl_module
        self.keep(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        del pl_module
        self.keep(trainer)


def test_epoch_logs_the_mean_loss_and_penalty_of_its_own_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 3, generator=generator)
    target = (inputs.sum(1) > 0).float()
    module = Recorder(n_features=3, related={"age": [0], "job": [1]}, backbone=Linear, eta=2.0, lr=0.1)
    logged = Logged()
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        callbacks=[logged],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = {"inputs": inputs, "target": target}
    trainer.fit(module, TensorBatches(rows, 60, shuffle=True), TensorBatches(rows, 60))
    assert len(module.seen) == 3 * 5
    assert len(logged.values) == 3
    for epoch, values in enumerate(logged.values):
        losses, penalties = zip(*module.seen[5 * epoch : 5 * epoch + 5], strict=True)
        assert values["train_loss"] == pytest.approx(sum(losses) / 5, rel=1e-5)
        assert values["train_penalty"] == pytest.approx(sum(penalties) / 5, rel=1e-5)
        assert values["train_penalty"] > 0.01
        assert values["lambda/age"] == pytest.approx(0.5)
    assert module.penalty.penalised_steps == 15
