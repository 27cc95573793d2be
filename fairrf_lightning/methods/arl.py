"""ARL: an adversary finds the rows on which the learner does worst, and gives them more weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairrf_lightning.backbones import MLP, Backbone
from fairrf_lightning.errors import InputError
from fairrf_lightning.module import FairRFModule, single_logit
from fairrf_lightning.run_state import continues_run

_MIN_MEAN = 1e-4  # as in the authors' code: keeps the weights finite when all scores vanish


class Adversary(nn.Module):
    """A logistic function of a row's inputs and label, trained by gradient ascent (Adagrad).

    Its scores ``f`` in (0, 1) give the row weights ``1 + n f_i / sum f``. It ascends the learner's weighted
    loss, whose gradient is written out here. The state is in buffers, not parameters, so that the learner's
    optimiser, gradient clipping and DDP ignore it. Sums are over the rows of all ranks.

    Args:
        n_features: Number of input columns.
        lr: Learning rate. For stacked models a tensor ``(S, P)``, with inputs ``(S, N, D)``, targets
            ``(S, N)``, and scores, weights and losses ``(S, P, N)``.

    >>> adversary = Adversary(1)
    >>> adversary.weights(torch.zeros(3, 1), torch.tensor([0.0, 1.0, 1.0]))
    tensor([2., 2., 2.])
    """

    coefficients: Tensor
    squares: Tensor

    def __init__(self, n_features: int, lr: float | Tensor = 0.01) -> None:
        super().__init__()
        if isinstance(lr, Tensor):
            self.register_buffer("lr", lr.unsqueeze(-1), persistent=False)
        else:
            self.lr: float | Tensor = lr
        shape = (*torch.as_tensor(lr).shape, n_features + 2)
        self.register_buffer("coefficients", torch.zeros(shape))
        self.register_buffer("squares", torch.full(shape, 0.1))

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the scores ``f`` of the rows, ``(N,)``."""
        design = _design(inputs, target)
        with torch.autocast(design.device.type, enabled=False):
            return (self.coefficients.to(design.dtype) @ design.mT).sigmoid()

    @torch.no_grad()
    def weights(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the weights of the rows, ``(N,)``; their mean is 2."""
        scores: Tensor = self(inputs, target)
        sums = torch.stack([scores.sum(-1), scores.new_full(scores.shape[:-1], scores.shape[-1])], dim=-1)
        total, rows = _sum_over_ranks(sums).chunk(2, dim=-1)
        weights: Tensor = 1 + scores / (total / rows).clamp(min=_MIN_MEAN)
        return weights

    @torch.no_grad()
    def gradient(self, inputs: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        """Return the gradient of the mean weighted loss, that is of ``sum f_i l_i / sum f``."""
        design = _design(inputs, target)
        scores = self(inputs, target)
        losses, slopes = losses.to(design.dtype), scores * (1 - scores)
        with torch.autocast(design.device.type, enabled=False):
            of_scores = torch.stack([scores.sum(-1), (scores * losses).sum(-1)], dim=-1)
            sums = [of_scores, slopes @ design, (slopes * losses) @ design]
        packed = _sum_over_ranks(torch.cat(sums, dim=-1))
        total, weighted, rest = packed.tensor_split((1, 2), dim=-1)
        slope_sums, loss_slope_sums = rest.chunk(2, dim=-1)
        return (loss_slope_sums - weighted / total * slope_sums) / total

    @torch.no_grad()
    def ascend(self, inputs: Tensor, target: Tensor, losses: Tensor) -> None:
        """Take one step towards larger weights on the rows with larger losses."""
        gradient = self.gradient(inputs, target, losses).to(self.squares.dtype)
        self.squares += gradient.square()
        self.coefficients += self.lr * gradient / self.squares.sqrt()


def _design(inputs: Tensor, target: Tensor) -> Tensor:
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    label = target.to(inputs.dtype).unsqueeze(-1)
    return torch.cat([inputs, label, torch.ones_like(label)], dim=-1)


def _sum_over_ranks(values: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(values)
    return values


class ARLModule(FairRFModule):
    """Adversarially reweighted learning (Lahoti et al., NeurIPS 2020), without S.

    On each batch the adversary first takes a step that raises the learner's weighted cross entropy; then
    the learner takes one that lowers it with the new weights. In the first steps the learner trains alone.
    Logs the same metrics as :class:`~fairrf_lightning.FairRFModule`; ``penalty/<feature>`` is measured, but
    not part of the loss.

    Args:
        n_features: Number of input columns.
        related: Column numbers of each related feature, for ``penalty/<feature>`` only.
        penalty_columns: Number of columns that batches have under ``related``; by default the related columns
            are among the inputs.
        backbone: Takes the number of input columns and returns a module that maps inputs to logits;
            or such a module itself, or the name of one of this package: ``mlp``, ``linear`` or ``svm``.
        adversary_lr: Learning rate of the adversary.
        pretrain_steps: Number of steps in which the learner trains alone.
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
        penalty_columns: int | None = None,
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
        # Not hparams: from the command line they lack what a subclass does not take as an argument.
        self._adversary_lr, self._pretrain_steps = adversary_lr, pretrain_steps
        super().__init__(
            n_features,
            related,
            penalty_columns=penalty_columns,
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
                f"ARL weights the cross entropy of each row, and {type(self.backbone).__name__} has a loss "
                "of its own: take another backbone, such as mlp or linear."
            )
        self.adversary = self._make_adversary()

    def _make_adversary(self) -> Adversary:
        return Adversary(int(self.hparams["n_features"]), self._adversary_lr)

    def setup(self, stage: str) -> None:
        """Build what depends on the data; each fit starts without the adversary, and with a new one."""
        super().setup(stage)
        if stage == "fit" and not continues_run(self.trainer) and self._steps:
            self._steps.zero_()
            self.adversary = self._make_adversary().to(self.device)

    def training_step(self, batch: Any) -> Tensor:
        inputs, target, _ = self.unpack(batch)
        losses = self.row_losses(self(inputs), target)
        weights = torch.ones_like(losses)
        if self._steps >= self._pretrain_steps:
            self.adversary.ascend(inputs, target, losses.detach())
            weights = self.adversary.weights(inputs, target)
        self._steps += 1
        self.add_train_losses(losses.mean(), torch.zeros_like(losses[0]))
        return (weights * losses).mean()

    def row_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of each row, ``(N,)``."""
        logits = single_logit(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        return binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")

    @property
    def adversary_steps(self) -> int:
        """Number of steps that the adversary has taken."""
        return max(0, int(self._steps) - self._pretrain_steps)

    def notices(self) -> list[str]:
        """Return the notice about an adversary that never stepped."""
        sentence = (
            "this is a vanilla model: the adversary of ARL never stepped. Train longer, or lower "
            "model.pretrain_steps."
        )
        return [] if self.adversary_steps else [sentence]

    def describe(self) -> str:
        """Return the line of the results table that names the method."""
        if not self.adversary_steps:
            return f"ARL: the adversary never stepped; all {int(self._steps)} steps were the learner's alone."
        lr, steps = self._adversary_lr, self._pretrain_steps
        return f"ARL: adversary with learning rate {lr:g}, after {steps} steps of the learner alone."
