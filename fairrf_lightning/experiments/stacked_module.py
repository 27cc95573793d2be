"""A stack: many FairRF models trained as one FairRFModule, with leading dimensions ``(S, P)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairrf_lightning.experiments.stacked_backbone import StackedBackbone
from fairrf_lightning.methods.arl import Adversary
from fairrf_lightning.metrics.counts import GAPS, GroupCounts, Mode
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.penalty import RelatedFeaturePenalty

_MODES: dict[Mode, str] = {"hard": "", "prob": "_prob"}


class StackedModule(FairRFModule):
    """``S`` seeds times ``P`` settings; their losses are summed.

    Adam works element by element, so each model takes the steps that it would take alone. Batches have
    ``inputs`` ``(S, N, D)`` and ``target`` ``(S, N)``. ``results`` holds the metrics of the last epoch of
    validation or test, ``(S, P)`` by name; nothing is logged.

    Args:
        backbone: The stacked networks.
        penalty: A penalty with eta of shape ``(S, P)``.
        num_groups: Number of groups of the sensitive attribute.
        lr: Learning rate of Adam.
    """

    backbone: StackedBackbone

    def __init__(
        self, backbone: StackedBackbone, penalty: RelatedFeaturePenalty, num_groups: int, lr: float = 1e-3
    ) -> None:
        super().__init__(backbone=backbone, lr=lr)
        self.penalty = penalty
        self.build_metrics(num_groups)

    def make_metrics(self, stage: str, num_groups: int) -> EvaluationMetrics:
        """Return metrics with gaps of probabilities, and on test the AUC of the worst group."""
        return StackedMetrics(self.penalty, num_groups, with_auc=stage == "test")

    def unpack(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs ``(S, N, D)``, target and groups ``(S, 1, N)``: settings share the rows of a seed."""
        inputs, target, groups = super().unpack(batch)
        return inputs, target.unsqueeze(1), None if groups is None else groups.unsqueeze(1)

    def related_of(self, batch: Any, inputs: Tensor) -> Tensor:
        """Return the related columns, ``(S, 1, N, C)``."""
        related: Tensor = batch.get("related", inputs)
        return related.unsqueeze(1)

    def check_predictions(self, logits: Tensor) -> None:
        """Accept NaN: a model that has diverged is never chosen, and the others are not affected."""

    def add_train_losses(self, loss: Tensor, penalty: Tensor) -> None:
        """Do nothing: Lightning logs scalars only."""

    def log_results(self, values: dict[str, Tensor]) -> None:
        """Do nothing: Lightning logs scalars only."""


class StackedARLModule(StackedModule):
    """``S x P`` models of :class:`~fairrf_lightning.methods.ARLModule`, each with its adversary.

    Args:
        backbone: The stacked networks.
        penalty: A penalty with an eta of 0, ``(S, P)``: it is measured, but not part of the loss.
        num_groups: Number of groups of the sensitive attribute.
        lr: Learning rate of Adam.
        adversary_lr: Learning rate of each adversary, ``(S, P)``.
        pretrain_steps: Number of steps in which the learners train alone.
    """

    def __init__(
        self,
        backbone: StackedBackbone,
        penalty: RelatedFeaturePenalty,
        num_groups: int,
        lr: float = 1e-3,
        *,
        adversary_lr: Tensor,
        pretrain_steps: int = 250,
    ) -> None:
        super().__init__(backbone, penalty, num_groups, lr)
        self.adversary = Adversary(backbone.columns.shape[-1], adversary_lr)
        self._pretrain_steps = pretrain_steps

    def training_step(self, batch: Any) -> Tensor:
        if self.trainer.global_step < self._pretrain_steps:
            return super().training_step(batch)
        inputs, target = batch["inputs"], batch["target"]
        losses = self.backbone.row_losses(self(inputs), target.unsqueeze(1))
        self.adversary.ascend(inputs, target, losses.detach())
        return (self.adversary.weights(inputs, target) * losses).mean(-1).sum()


class StackedMetrics(EvaluationMetrics):
    """Metrics of a stack: no intervals, but the mean deviations, and all gaps of probabilities as well.

    Args:
        penalty: The penalty of the stack.
        num_groups: Number of groups of the sensitive attribute.
        with_auc: Add ``worst_group_auc``; sorting all rows of all models takes time.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, num_groups: int, *, with_auc: bool = False) -> None:
        super().__init__(penalty, num_groups)
        self.counter.validate_args = False  # the predictions of a diverged model are NaN
        self._auc = WorstGroupAUC(num_groups) if with_auc else None

    def update(
        self, loss: Tensor, logits: Tensor, related: Tensor, target: Tensor, groups: Tensor | None
    ) -> None:
        """Add a batch: logits ``(S, P, N)``, target and groups ``(S, 1, N)``."""
        super().update(loss, logits, related, target, groups)
        if self._auc is not None and groups is not None:
            self._auc.update(logits, target.squeeze(1) > 0.5, groups.squeeze(1))

    def compute(self, *, intervals: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the metrics by name, and ``penalty/<feature>``; each of shape ``(S, P)``."""
        values, penalties = super().compute(intervals=intervals)
        if self._auc is not None and self._groups_seen:
            values["worst_group_auc"] = self._auc.compute()
        return values, penalties

    def _gaps(self, counts: GroupCounts, *, intervals: bool) -> dict[str, Tensor]:
        del intervals
        values = {}
        for key, gap in GAPS.items():
            deviation = f"{key.removesuffix('_gap')}_mean_deviation"
            for mode, suffix in _MODES.items():
                values[f"{key}{suffix}"] = counts.gap(gap, "gap", mode)
                values[f"{deviation}{suffix}"] = counts.gap(gap, "mean_deviation", mode)
        return values

    def reset(self) -> None:
        """Drop all batches."""
        super().reset()
        if self._auc is not None:
            self._auc.reset()


class WorstGroupAUC:
    """The smallest area under the ROC curve of a group, for ``(S, P)`` models.

    A group without rows of both classes has no such area: the result is then NaN.

    Args:
        num_groups: Number of groups of the sensitive attribute; rows of group -1 do not count.
    """

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def reset(self) -> None:
        """Drop all batches."""
        self._batches = []

    def update(self, logits: Tensor, positive: Tensor, groups: Tensor) -> None:
        """Add a batch: logits ``(S, P, N)``, positive rows and groups ``(S, N)``."""
        self._batches.append((logits, positive, groups))

    def compute(self) -> Tensor:
        """Return the area of each model, ``(S, P)``."""
        logits, positive, groups = (torch.cat(column, dim=-1) for column in zip(*self._batches, strict=True))
        return torch.stack([self._worst(*seed) for seed in zip(logits, positive, groups, strict=True)])

    def _worst(self, logits: Tensor, positive: Tensor, groups: Tensor) -> Tensor:
        members = [groups == group for group in range(self._num_groups)]
        areas = [auc(logits[:, member & positive], logits[:, member & ~positive]) for member in members]
        return torch.stack(areas).amin(0)


def auc(positives: Tensor, negatives: Tensor) -> Tensor:
    """Return how often a positive is above a negative, ties counting half, ``(P,)``.

    >>> auc(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]]))
    tensor([0.6250], dtype=torch.float64)
    """
    below, others = positives.contiguous(), negatives.sort(dim=-1).values
    ranks = torch.searchsorted(others, below) + torch.searchsorted(others, below, right=True)
    return ranks.double().mean(-1) / (2 * negatives.shape[-1])
