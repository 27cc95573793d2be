"""Adds the penalty to the loss in a wrapped ``backward``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.callbacks.dropin.batch_parts import BatchPart
from fairrf_lightning.callbacks.dropin.matching import RowMatcher
from fairrf_lightning.callbacks.dropin.prediction import PredictionTap, watch_calls
from fairrf_lightning.callbacks.dropin.validation import ValidationPenalty
from fairrf_lightning.callbacks.dropin.wrapped_method import WrappedMethod
from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty

_ONE_ROW = "batches of one row: a covariance needs two. Take a larger batch_size."


class Attachment:
    """Adds a penalty to the loss of a module's backward pass.

    ``LightningModule.backward``, which automatic and manual optimisation both call, is wrapped on the
    instance, where ``loss + penalty`` replaces the loss. The loss that the module returns and logs stays as
    it is. Adding in place (``loss.add_``) would change it, and would break the backward pass of a loss
    that autograd has saved, such as a norm.

    Args:
        penalty: The penalty to add to the loss.
        module: Name of the submodule or method whose output is the prediction; ``None``: the module's
            ``forward``.
        prediction: Which part of that output is the prediction; ``None``: all of it.
        inputs: Where the batch has the related columns; ``None``: its side channel, or the first tensor
            passed to ``module``.
        target: Where the batch has the labels, for ``given="positives"``.
        backward: Number of the backward pass in a training step; ``None``: each one.
    """

    def __init__(
        self,
        penalty: RelatedFeaturePenalty,
        module: str | None = None,
        *,
        prediction: BatchPart | None = None,
        inputs: BatchPart | None = None,
        target: BatchPart | None = None,
        backward: int | None = None,
    ) -> None:
        if penalty.given == "positives" and target is None:
            raise InputError(
                "given='positives' needs the labels: say where the batch has them, for example "
                "target='label' or target=1."
            )
        if backward is not None and backward < 0:
            raise InputError(f"backward = {backward}: expected the number of a backward pass, from 0.")
        self.penalty = penalty
        self.backward = backward
        self.rows = RowMatcher(penalty, module, inputs, target)
        self._tap = PredictionTap(module, prediction)
        self._validation: ValidationPenalty | None = None
        self._undo: list[Callable[[], object]] = []
        self._start()
        self._share_with_started_processes()

    def _start(self) -> None:
        self._passes = self._max_passes = 0
        self._penalised = self._skipped = False
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._sum, self._count = torch.zeros(()), 0
        self.measured: Tensor | None = None  # R at the epoch's last update of lambda

    def setup(self, pl_module: LightningModule) -> None:
        """Take the columns of ``WithRelated`` out of the batches of fit, validation, test and prediction."""
        self.rows.open_channel(pl_module)

    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook the submodule and wrap the backward pass."""
        self.detach()
        self._check(trainer, pl_module)
        self._start()
        data: Any = getattr(trainer, "datamodule", None)
        if hasattr(data, "penalise_positives"):
            data.penalise_positives(positives=self.penalty.given == "positives")
        names = getattr(data, "feature_names", None)
        self.rows.start(None if names is None else [str(name) for name in names])
        self.penalty.to(pl_module.device)
        self._validation = ValidationPenalty(self.penalty, self.rows, pl_module.device)
        # First: it raises if there is no such submodule.
        self._undo = watch_calls(pl_module, self._tap.name, self._tap.record)
        around = partial(self._around_backward, trainer=trainer, pl_module=pl_module)
        self._undo.append(WrappedMethod(pl_module, "backward", around).remove)

    def detach(self) -> None:
        """Restore the module, apart from its side channel."""
        self.end_batch()
        self._validation = None
        while self._undo:
            self._undo.pop()()

    def teardown(self, trainer: Trainer, stage: str) -> None:
        """Restore the module; after a fit, hand lambda to the process that started this one."""
        self.detach()
        self.rows.close_channel()
        if stage == "fit" and trainer.is_global_zero:
            self.penalty.hold_in(*self._shared)

    def _share_with_started_processes(self) -> None:
        # `ddp_spawn`, `ddp_fork` and `ddp_notebook` train in processes that they start. Lightning returns the
        # module's weights from there, but not the state of callbacks. So lambda and the counters are held in
        # memory that is shared with these processes, and rank zero writes there when a fit ends.
        self._shared = self.penalty.weights.detach().cpu().clone(), torch.zeros(2, dtype=torch.long)
        with suppress(RuntimeError):  # a system without shared memory starts no processes either
            for tensor in self._shared:
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        self.penalty.hold_in(*self._shared)

    def _around_backward(
        self,
        backward: Callable[..., None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        trainer: Trainer,
        pl_module: LightningModule,
    ) -> None:
        loss, *rest = args
        loss = self._with_penalty(loss, trainer, pl_module)
        # Gradient checkpointing calls the module again during the backward pass; these are no predictions.
        with self._tap.paused():
            backward(loss, *rest, **kwargs)

    def start_batch(self, batch: Any, *, training: bool = True) -> None:
        """Record the predictions of a batch of training or of validation."""
        self.rows.batch = batch
        self._passes = 0
        self._tap.open(training=training)

    def end_batch(self) -> None:
        """Stop recording, and release the batch and its graph."""
        self.rows.batch = None
        self._max_passes = max(self._max_passes, self._passes)
        self._tap.close()

    def end_validation_batch(self) -> None:
        """Add the predictions of this batch to those of the validation epoch of a fit."""
        if self._validation:
            self._validation.update(self._tap.pop())
        self.end_batch()

    def end_validation_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the validation penalty and its part of the objective; ``None`` if it is unknown."""
        return self._validation.end_epoch(trainer) if self._validation else None

    def end_epoch(self, pl_module: LightningModule) -> dict[str, Tensor]:
        """Return the values to log.

        Raises:
            InputError: If the penalty has not been part of any backward pass.
        """
        if self._skipped and not self._penalised:
            raise InputError(_ONE_ROW)
        if not self._penalised and (self._max_passes or not pl_module.automatic_optimization):
            why = (
                f"backward = {self.backward}, but a training step had {self._max_passes}, counted from 0."
                if self._max_passes
                else "training_step ran no backward pass of Lightning. Call self.manual_backward(loss) in "
                "place of loss.backward()."
            )
            raise InputError(f"the penalty went into no backward pass: {why}")
        names = self.penalty.feature_names
        measured = self.penalty.pending_penalties() if self.measured is None else self.measured
        values = {"train_penalty": self._sum / max(1, self._count)}
        values |= {f"lambda/{name}": weight for name, weight in zip(names, self.penalty.weights, strict=True)}
        if measured is not None:  # else: pretraining
            values |= {f"penalty/{name}": value for name, value in zip(names, measured, strict=True)}
        self._start_epoch()
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return lambda and the moments since its last update, as tensors and plain values."""
        return {"features": self.penalty.feature_names, **self.penalty.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint.

        Raises:
            InputError: If the checkpoint is of other related features.
        """
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
        if type(trainer.precision_plugin).backward is not Precision.backward:  # DeepSpeed
            raise InputError(
                f"{type(trainer.strategy).__name__} does not call LightningModule.backward, so the penalty "
                "cannot be attached: hold it in your module (self.fairness = RelatedFeaturePenalty({...})) "
                "and add self.fairness(logits, inputs) to its loss."
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
            self._tap.mark_stale()
            return loss
        calls = self._tap.pop()
        if not calls and (trainer.world_size > 1 or not (self._penalised or self._skipped)):
            raise self._tap.nothing_recorded(pl_module)
        if not calls or self._has_one_row(sum(len(call.preds) for call in calls), trainer):
            return loss
        penalty = self.penalty(*self.rows.match(calls))
        self._penalised = True
        if not self.penalty.enabled:
            return loss
        self._sum = self._sum.to(penalty.device) + penalty.detach()
        self._count += 1
        return loss + _scaled(penalty, trainer, pl_module)

    def _has_one_row(self, rows: int, trainer: Trainer) -> bool:
        """Return whether the batch of all ranks is one row, which has no covariance; note it once."""
        if rows * trainer.world_size > 1:
            return False
        if not self._penalised and not trainer.is_last_batch:
            raise InputError(_ONE_ROW)
        if not self._skipped:
            self._skipped = True
            rank_zero_info("The last batch of an epoch has one row: it is trained without the penalty.")
        return True


def _scaled(penalty: Tensor, trainer: Trainer, pl_module: LightningModule) -> Tensor:
    """Scale the penalty as Lightning has already scaled the loss."""
    if pl_module.automatic_optimization and trainer.accumulate_grad_batches != 1:
        penalty = penalty / trainer.accumulate_grad_batches
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return penalty if scaler is None else scaler.scale(penalty)
