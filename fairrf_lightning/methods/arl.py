"""ARL: fairness for whatever region the learner does worst in, found by an adversary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fairrf_lightning.backbones import MLP, Backbone
from fairrf_lightning.errors import InputError
from fairrf_lightning.methods.adversary import Adversary
from fairrf_lightning.module import FairRFModule, unpack_batch
from fairrf_lightning.run_state import continues_run


class ARLModule(FairRFModule):
    """Adversarially reweighted learning (Lahoti et al., NeurIPS 2020), without S.

    In turn on each batch, the adversary takes a step that raises the weighted cross entropy of the
    learner, and the learner one that lowers it under the new weights. For the first steps the learner
    trains alone. Logs what :class:`~fairrf_lightning.FairRFModule` logs; ``penalty/<feature>`` is
    measured, but not trained on.

    Args:
        n_features: Number of input columns.
        related: Column numbers of each related feature, for ``penalty/<feature>`` only.
        related_width: Columns that batches carry under ``related``; by default the related columns are
            among the inputs.
        backbone: Takes the number of input columns and returns a module that maps inputs to logits;
            or such a module itself, or the name of one of this package: ``mlp``, ``linear`` or ``svm``.
        adversary_lr: Learning rate of the adversary.
        pretrain_steps: Steps that the learner trains alone.
        lr: Learning rate of the default optimiser, Adam (fused where available).
        optimizer: Another optimiser of the learner: a callable of the parameters.
        lr_scheduler: A scheduler: a callable of the optimiser, stepped every epoch.
        num_groups: Number of groups of the sensitive attribute in validation and test batches.
    """

    adversary: Adversary
    _steps: Tensor

    def __init__(
        self,
        n_features: int | None = None,
        related: dict[str, list[int]] | None = None,
        *,
        related_width: int | None = None,
        backbone: Backbone = MLP,
        adversary_lr: float = 0.01,
        pretrain_steps: int = 250,
        lr: float = 1e-3,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        num_groups: int | None = None,
    ) -> None:
        if not adversary_lr > 0:
            raise InputError(f"adversary_lr = {adversary_lr!r}: expected a positive learning rate.")
        if pretrain_steps < 0:
            raise InputError(f"pretrain_steps = {pretrain_steps}: expected 0 or more steps.")
        self._adversary_options = adversary_lr, pretrain_steps
        super().__init__(
            n_features,
            related,
            related_width=related_width,
            backbone=backbone,
            eta=0.0,
            lr=lr,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            num_groups=num_groups,
        )
        self.register_buffer("_steps", torch.zeros((), dtype=torch.long))

    def _build(
        self, n_features: int, related: Mapping[str, list[int]], num_groups: int, width: int | None
    ) -> None:
        super()._build(n_features, related, num_groups, width)
        if hasattr(self.backbone, "task_loss"):
            raise InputError(
                f"ARL weighs the cross entropy of each row, and {type(self.backbone).__name__} has a loss "
                "of its own: take another backbone, such as mlp or linear."
            )
        self.adversary = Adversary(n_features, self._adversary_options[0])

    def setup(self, stage: str) -> None:
        """Build what depends on the data; each fit starts with the learner alone and a new adversary."""
        super().setup(stage)
        if stage == "fit" and not continues_run(self.trainer) and self._steps:
            self._steps.zero_()
            device = self.device
            self.adversary = Adversary(int(self.hparams["n_features"]), self._adversary_options[0]).to(device)

    def training_step(self, batch: Any) -> Tensor:
        inputs, target, _ = unpack_batch(batch)
        losses = self.row_losses(self(inputs), target)
        weights = torch.ones_like(losses)
        if self._steps >= self._adversary_options[1]:
            self.adversary.ascend(inputs, target, losses.detach())
            weights = self.adversary.weights(inputs, target)
        self._steps += 1
        self._note_losses(losses.mean(), torch.zeros_like(losses[0]))
        return (weights * losses).mean()

    def row_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of each row, ``(N,)``."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if logits.ndim == 2:
            logits = logits[:, -1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]
        return binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")

    @property
    def adversary_steps(self) -> int:
        """Number of steps that the adversary has taken."""
        return max(0, int(self._steps) - self._adversary_options[1])

    def notices(self) -> list[str]:
        """Return the notice about an adversary that never stepped."""
        sentence = (
            "this is a vanilla model: the adversary of ARL never stepped. Train longer, or lower "
            "model.pretrain_steps."
        )
        return [] if self.adversary_steps else [sentence]

    def describe(self) -> str:
        """Return the line of the results table that names the method."""
        lr, steps = self._adversary_options
        if not self.adversary_steps:
            return f"ARL: the adversary never stepped; all {int(self._steps)} steps were the learner's alone."
        return f"ARL: adversary with learning rate {lr:g}, after {steps} steps of the learner alone."
