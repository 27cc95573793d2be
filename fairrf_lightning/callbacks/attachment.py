"""Puts a penalty into the training of a module that knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.callbacks.batch_part import BatchPart, batch_part, check_batch_size, related_rows
from fairrf_lightning.callbacks.prediction_tap import Captured, PredictionTap
from fairrf_lightning.callbacks.validation_penalty import ValidationPenalty
from fairrf_lightning.callbacks.wrapped_backward import WrappedBackward
from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


class Attachment:
    """Listens to the predictions of a submodule and adds the penalty to the loss of a backward pass.

    ``LightningModule.backward``, through which automatic and manual optimisation both go, is wrapped on
    the instance: ``loss + penalty`` takes the loss's place there. The loss that the module returned or
    logs stays as it is. Adding in place (``loss.add_``) would change it, and would break the backward
    pass of a loss that autograd has saved, such as a norm.

    Args:
        penalty: What is added to the loss.
        module: Name of the submodule whose output is the prediction; ``None``: the module's ``forward``.
        inputs: Where the batch has the related columns; ``None``: the first tensor handed to ``module``.
        target: Where the batch has the labels, for ``given="positives"``.
        backward: Number of the backward pass in a training step; ``None``: each one.
    """

    def __init__(
        self,
        penalty: RelatedFeaturePenalty,
        module: str | None,
        inputs: BatchPart | None,
        target: BatchPart | None,
        backward: int | None,
    ) -> None:
        if penalty.given == "positives" and target is None:
            raise InputError(
                "given='positives' needs the labels: say where the batch has them, for example "
                "target='label' or target=1."
            )
        if backward is not None and backward < 0:
            raise InputError(f"backward = {backward}: expected the number of a backward pass, from 0.")
        self.penalty = penalty
        self.inputs = inputs
        self.target = target
        self.backward = backward
        self._tap = PredictionTap(module)
        self._validation = ValidationPenalty(penalty)
        self._undo: list[Callable[[], object]] = []
        self._batch: Any = None
        self._passes = self._most_passes = 0
        self._served = False
        self._start_epoch()

    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to listen, and wrap the backward pass."""
        self.detach()
        self._check(trainer, pl_module)
        self.penalty.to(pl_module.device)
        self._validation.start(pl_module.device)
        self._served = False
        self._most_passes = 0
        self._start_epoch()
        # Gradient checkpointing calls the module again while it goes backward: no prediction.
        add = partial(self._with_penalty, trainer=trainer, pl_module=pl_module)
        self._undo = [self._tap.attach(pl_module)]  # first: it fails if there is no such submodule
        self._undo.append(WrappedBackward(pl_module, add, self._tap.paused).remove)

    def detach(self) -> None:
        """Leave the module as it was."""
        self.end_batch()
        while self._undo:
            self._undo.pop()()

    def start_batch(self, batch: Any) -> None:
        """Listen from now on: this is a training batch."""
        self._batch = batch
        self._passes = 0
        self._tap.open()

    def end_batch(self) -> None:
        """Stop listening, and let go of the batch and its graph."""
        self._batch = None
        self._most_passes = max(self._most_passes, self._passes)
        self._tap.close()

    def start_validation_batch(self, batch: Any) -> None:
        """Listen from now on, if the penalty is attached: this is a validation batch of a fit."""
        if self._undo:
            self._batch = batch
            self._tap.open(training=False)

    def end_validation_batch(self, pl_module: LightningModule) -> None:
        """Add the predictions of this batch to those of the validation epoch."""
        if self._undo:
            with self._validation.noting_problems():
                if (captured := self._tap.take(pl_module, required=False)) is not None:
                    self._validation.update(*self._matched(captured))
            self._batch = None
            self._tap.close()

    def end_validation_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the validation penalty and what it adds to the objective; ``None`` if it is unknown."""
        return self._validation.end_epoch(trainer) if self._undo else None

    def end_epoch(self, pl_module: LightningModule) -> dict[str, Tensor]:
        """Return what is worth logging; an epoch in which the penalty had no place is an error."""
        if not self._served and (self._most_passes or not pl_module.automatic_optimization):
            why = (
                f"backward = {self.backward}, but a training step had {self._most_passes}, counted from 0."
                if self._most_passes
                else "training_step ran none that Lightning knows of. Call self.manual_backward(loss) in "
                "place of loss.backward()."
            )
            raise InputError(f"the penalty went into no backward pass: {why}")
        values = {"train_penalty": self._sum / max(1, self._count)}
        names = self.penalty.feature_names
        measured = self.penalty.pending_penalties() if self.measured is None else self.measured
        self._start_epoch()
        values |= {f"lambda/{name}": weight for name, weight in zip(names, self.penalty.weights, strict=True)}
        if measured is None:  # pretraining
            return values
        return values | {f"penalty/{name}": value for name, value in zip(names, measured, strict=True)}

    def _start_epoch(self) -> None:
        self._sum, self._count = torch.zeros(()), 0
        self.measured: Tensor | None = None  # R at the epoch's last update of lambda

    def state_dict(self) -> dict[str, Any]:
        """Return lambda and the moments since its last update, as tensors and plain values."""
        return {"features": self.penalty.feature_names, **self.penalty.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint."""
        state = dict(state)
        features = state.pop("features")
        if features != self.penalty.feature_names:
            raise InputError(
                f"the checkpoint has a lambda for {', '.join(features)}, the penalty is for "
                f"{', '.join(self.penalty.feature_names)}: resume with the checkpoint's related features."
            )
        self.penalty.load_state_dict(state)

    def _check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if any(isinstance(part, RelatedFeaturePenalty) for part in pl_module.modules()):
            raise InputError(
                f"{type(pl_module).__name__} holds a RelatedFeaturePenalty of its own, so penalty= would add "
                "a second one: leave penalty= out, LambdaUpdateCallback finds the module's."
            )
        if pl_module.automatic_optimization and self.backward:
            raise InputError(
                f"backward = {self.backward}: with automatic optimisation there is one backward pass in a "
                "training step; leave backward= out."
            )
        if len(trainer.optimizers) > 1 and self.backward is None:
            raise InputError(
                f"{type(pl_module).__name__} has {len(trainer.optimizers)} optimisers: say which backward "
                "pass of a training step the penalty goes into, for example backward=0 for the first "
                "manual_backward."
            )

    def _with_penalty(self, loss: Tensor, trainer: Trainer, pl_module: LightningModule) -> Tensor:
        number, self._passes = self._passes, self._passes + 1
        if self.backward not in (None, number) and not pl_module.automatic_optimization:
            self._tap.age()
            return loss
        required = not self._served or trainer.world_size > 1
        if (captured := self._tap.take(pl_module, required=required)) is None:
            return loss
        check_batch_size(captured.preds, trainer.world_size)
        preds, inputs, target = self._matched(captured)
        self._served = True
        if not self.penalty.enabled:
            return loss
        penalty = self.penalty(preds, inputs, target)
        self._sum = self._sum.to(penalty.device) + penalty.detach()
        self._count += 1
        return loss + _scaled(penalty, trainer, pl_module)

    def _matched(self, captured: Captured) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the predictions with the inputs and labels of the same rows."""
        preds, handed = captured
        inputs = handed if self.inputs is None else batch_part(self._batch, self.inputs, "inputs")
        target = None if self.target is None else batch_part(self._batch, self.target, "target")
        inputs = related_rows(inputs, self.inputs, preds)
        self.penalty.check_inputs(inputs)
        return preds, inputs, target


def _scaled(penalty: Tensor, trainer: Trainer, pl_module: LightningModule) -> Tensor:
    """Treat the penalty as Lightning has treated the loss by now."""
    if pl_module.automatic_optimization and trainer.accumulate_grad_batches != 1:
        penalty = penalty / trainer.accumulate_grad_batches
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return penalty if scaler is None else scaler.scale(penalty)
