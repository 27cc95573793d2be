"""ARL in a stack: each model has an adversary of its own."""

from __future__ import annotations

from torch import Tensor

from fairrf_lightning.experiments.stacked_backbone import StackedBackbone
from fairrf_lightning.experiments.stacked_module import StackedModule
from fairrf_lightning.methods.arl import Adversary
from fairrf_lightning.penalty import RelatedFeaturePenalty


class StackedARLModule(StackedModule):
    """``S x P`` models of :class:`~fairrf_lightning.methods.ARLModule`, each with its adversary.

    Args:
        backbone: The stacked networks.
        penalty: A penalty with an eta of 0, ``(S, P)``: it is measured, not trained on.
        num_groups: Number of groups of the sensitive attribute.
        lr: Learning rate of Adam.
        adversary_lr: Learning rate of each adversary, ``(S, P)``.
        pretrain_steps: Steps that the learners train alone.
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
        self._alone = pretrain_steps

    def task_losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the task loss of each model, ``(S, P)``: in training, weighted by its adversary."""
        if not self.training or self.trainer.global_step < self._alone:
            return super().task_losses(logits, batch)
        inputs, target = batch["inputs"], batch["target"]
        losses = self.backbone.row_losses(logits, target)
        self.adversary.ascend(inputs, target, losses.detach())
        return (self.adversary.weights(inputs, target) * losses).mean(-1)
