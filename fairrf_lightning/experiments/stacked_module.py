"""A grid is a model: many FairRF models trained as one LightningModule."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor

from fairrf_lightning.experiments.stacked_auc import WorstGroupAUC
from fairrf_lightning.experiments.stacked_backbone import StackedBackbone
from fairrf_lightning.experiments.stacked_metrics import StackedMetrics, related_of
from fairrf_lightning.penalty import RelatedFeaturePenalty


class StackedModule(LightningModule):
    """``S`` seeds times ``P`` settings; their losses are summed.

    Adam works element by element, so each model takes the very steps that it would take alone.
    ``results`` holds what the last validation or test epoch measured, ``(S, P)`` by name.

    Args:
        backbone: The stacked networks.
        penalty: A penalty with eta of shape ``(S, P)``.
        num_groups: Number of groups of the sensitive attribute.
        lr: Learning rate of Adam.
    """

    def __init__(
        self, backbone: StackedBackbone, penalty: RelatedFeaturePenalty, num_groups: int, lr: float = 1e-3
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.penalty = penalty
        self.results: dict[str, Tensor] = {}
        self._lr = lr
        self._metrics = StackedMetrics(penalty, num_groups)
        self._auc = WorstGroupAUC(num_groups)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits ``(S, P, N)`` of the rows of each seed ``(S, N, D)``."""
        logits: Tensor = self.backbone(inputs)
        return logits

    def task_losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the task loss of each model, ``(S, P)``; the place for weights of the rows."""
        by_row = self.backbone.row_losses(logits, batch["target"])
        return by_row.mean(-1) + self.backbone.regulariser()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self(batch["inputs"])
        related, target = related_of(batch).unsqueeze(1), batch["target"].unsqueeze(1)
        penalties: Tensor = self.penalty(logits, related, target)
        return (self.task_losses(logits, batch) + penalties).sum()

    def on_validation_epoch_start(self) -> None:
        self._metrics.reset()

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self._measure(batch)

    def on_validation_epoch_end(self) -> None:
        self.results = self._metrics.compute()

    def on_test_epoch_start(self) -> None:
        self.on_validation_epoch_start()
        self._auc.reset()

    def test_step(self, batch: dict[str, Tensor]) -> None:
        self._auc.update(self._measure(batch), batch)

    def on_test_epoch_end(self) -> None:
        # Only here: sorting all rows of all models in each validation epoch would cost too much.
        self.results = self._metrics.compute() | self._auc.compute()

    def _measure(self, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self(batch["inputs"])
        self._metrics.update(self.task_losses(logits, batch), logits, batch)
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one Adam for all models."""
        return torch.optim.Adam(self.parameters(), lr=self._lr, fused=self.device.type in ("cpu", "cuda"))
