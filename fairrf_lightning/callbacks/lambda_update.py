"""Algorithm 1, second phase: solve for lambda every few steps."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fairrf_lightning.callbacks.dropin.attachment import Attachment
from fairrf_lightning.callbacks.dropin.batch_parts import BatchPart
from fairrf_lightning.callbacks.epoch_penalties import EpochPenalties
from fairrf_lightning.checkpoints import restored
from fairrf_lightning.errors import InputError, check_choice
from fairrf_lightning.functional import Rule, check_beta
from fairrf_lightning.notices import collapse_notice, never_updated_notice
from fairrf_lightning.penalty import UPDATE_INTERVAL, RelatedFeaturePenalty
from fairrf_lightning.run_state import (
    OptimiserSteps,
    continues_run,
    find_penalties,
    penalties_of,
    start_fresh,
)


class LambdaUpdateCallback(Callback):
    """Sets lambda to its closed-form optimum (the paper's Eq. 15-19) while the penalty is on.

    The penalties ``R`` are those of all rows, on all ranks, that training has seen since the last
    update: no extra forward pass. Without this callback lambda stays fixed (the paper's Fix-lambda).

    The module holds its penalty, as FairRFModule does. Or give ``penalty``, and it is attached to any
    module, without a change to its code: see ``docs/dropin.md``.

    Each fit starts fresh, with the penalty's initial lambda. A fit that resumes from a checkpoint, or a
    second fit of the same Trainer, continues.

    Args:
        beta: Weight of ``|lambda|^2``: large values keep lambda near ``1 / K``, small ones let it
            collapse onto the feature with the smallest penalty. For stacked models a list, one value each.
        every_n_steps: Optimiser steps between updates; ``None`` leaves lambda fixed. A batch in which
            several optimisers step counts once. ``"auto"``, the default of the command line, is 50, or
            less if the data module has few training rows.
        rule: ``kkt`` (the paper's: weight to the smallest penalties) or ``worst_case`` (weight to what
            still correlates).
        penalty: A penalty to attach to a module without a penalty.
        module: With ``penalty``: name of the submodule or method (``"model.shared_step"``) whose output is
            the prediction; ``None`` for the LightningModule's own ``forward``.
        prediction: With ``penalty``: which part of that output is the prediction: a key, an index or a path
            such as ``"logits.0"`` (an index of a tensor is a column), or a function of the output; ``None``
            for all of it.
        inputs: With ``penalty``: where the related columns are: a key of a dict batch, an index into a
            tuple batch, a path such as ``"0.payload.amount"``, or a function of the batch; ``None`` for the
            columns of ``WithRelated``, or else for the first tensor passed to ``module``.
        target: With ``penalty``: where the batch has the labels, likewise; for ``given="positives"``.
        backward: With ``penalty`` and manual optimisation: number of the backward pass in a training
            step that the penalty is added to, from 0; ``None`` for each.
        val_loss: With ``penalty``: name of the task loss that ``validation_step`` logs. If it is logged,
            so is ``val_objective``.

    >>> LambdaUpdateCallback(beta=0.5, every_n_steps=50).state_dict()
    {'steps_since_update': 0}
    >>> fairness = RelatedFeaturePenalty({"age": [0]}, eta=0.5)
    >>> LambdaUpdateCallback(penalty=fairness, module="net").state_key
    "LambdaUpdateCallback{'module': 'net'}"
    """

    def __init__(
        self,
        beta: float | list[float] = 0.5,
        every_n_steps: int | Literal["auto"] | None = UPDATE_INTERVAL,
        rule: Rule = "kkt",
        *,
        penalty: RelatedFeaturePenalty | None = None,
        module: str | None = None,
        prediction: BatchPart | None = None,
        inputs: BatchPart | None = None,
        target: BatchPart | None = None,
        backward: int | None = None,
        val_loss: str = "val_loss",
    ) -> None:
        check_beta(_as_tensor(beta))
        check_choice("rule", rule, get_args(Rule))
        if isinstance(every_n_steps, int) and every_n_steps < 1:
            raise InputError(
                f"every_n_steps = {every_n_steps}: expected 1 or more optimiser steps between "
                "updates of lambda, or null to leave it fixed."
            )
        self.beta = beta
        self.every_n_steps = every_n_steps
        # "auto" is resolved in setup.
        self.update_interval = every_n_steps if isinstance(every_n_steps, int) else None
        self.rule: Rule = rule
        self.penalty = penalty
        self.val_loss = val_loss
        self._attachment: Attachment | None = None
        if penalty is not None:
            self._attachment = Attachment(
                penalty, module, prediction=prediction, inputs=inputs, target=target, backward=backward
            )
        else:
            _check_unused(
                module=module, prediction=prediction, inputs=inputs, target=target, backward=backward
            )
        self._module = module
        self._state_key = super().state_key  # Lightning asks for it in each hook of each batch
        if penalty is not None:
            part = {} if prediction is None else {"prediction": getattr(prediction, "__name__", prediction)}
            self._state_key = self._generate_state_key(module=module, **part)
        self._val_cost: Tensor | None = None
        self._measured: list[EpochPenalties] = []
        self._penalties: list[RelatedFeaturePenalty] = []  # of this fit
        self._start()

    def _start(self) -> None:
        self._steps = OptimiserSteps()
        self._steps_since_update = 0
        self._warned = False

    @property
    def state_key(self) -> str:
        """Name of the state in a checkpoint; several penalties can be attached, each to its own output."""
        return self._state_key

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start fresh in each fit; the state of a checkpoint is restored after this."""
        if self._attachment:
            self._attachment.setup(pl_module)
        if stage == "fit":
            if self.every_n_steps == "auto":
                data = getattr(trainer, "datamodule", None)
                self.update_interval = getattr(data, "update_interval", UPDATE_INTERVAL)
            start_fresh(trainer, penalties_of(trainer, pl_module))
            if not continues_run(trainer):
                self._start()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the penalty, now that ``configure_model`` and the strategy have built the module."""
        if self._attachment:
            self._attachment.attach(trainer, pl_module)
        found = [self.penalty] if self.penalty else find_penalties(trainer, pl_module, self)
        if self.every_n_steps is not None:
            for penalty in found:
                penalty.beta, penalty.rule = _as_tensor(self.beta), self.rule
        self._penalties = found
        single = [penalty for penalty in found if penalty.is_wanted and penalty.weights.ndim == 1]
        self._measured = [EpochPenalties(penalty) for penalty in single]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the module; return lambda to the process that started this one."""
        for measured in self._measured:
            measured.remove()
        self._measured, self._penalties = [], []
        if self._attachment:
            self._attachment.teardown(trainer, stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the module: Lightning does not call ``teardown`` after an error."""
        self.teardown(trainer, pl_module, "fit")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the predictions of a training batch."""
        self._steps.start_batch(trainer)
        if self._attachment:
            self._attachment.start_batch(batch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Count optimiser steps with the penalty on; update lambda when it is due."""
        if self._attachment:
            self._attachment.end_batch()
        if not self._steps.end_batch(trainer) or self.update_interval is None:
            return
        self._steps_since_update += any(penalty.enabled for penalty in self._penalties)
        if self._steps_since_update >= self.update_interval:
            self._steps_since_update = 0
            for penalty in self._penalties:
                self._update(penalty)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the loss of the last validation, so that it is not mistaken for that of this one."""
        if self._attachment:
            trainer.callback_metrics.pop(self.val_loss, None)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Record the predictions of a batch of the first validation loader."""
        if self._attachment and dataloader_idx == 0:
            self._attachment.start_batch(batch, training=False)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, dataloader_idx: int = 0, **__: Any
    ) -> None:
        """Measure the penalty of these predictions."""
        if self._attachment and dataloader_idx == 0:
            self._attachment.end_validation_batch()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log ``val_penalty`` and ``val_objective`` of an attached penalty."""
        measured = self._attachment.end_validation_epoch(trainer) if self._attachment else None
        if measured is None:
            self._val_cost = None
            return
        total, self._val_cost = measured
        # Equal on all ranks already; the maximum of equals is exact.
        name = "val_penalty" + self._suffix(trainer, pl_module)
        pl_module.log(name, total, sync_dist=True, reduce_fx="max")
        # The last of several attached penalties logs the sum.
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        attached = [c for c in callbacks if isinstance(c, LambdaUpdateCallback) and c.penalty is not None]
        costs = [other._val_cost for other in attached if other._val_cost is not None]  # noqa: SLF001 - this class
        loss = trainer.callback_metrics.get(self.val_loss)
        if loss is not None and self is attached[-1] and len(costs) == len(attached):
            pl_module.log("val_objective", loss.to(total.device) + sum(costs), sync_dist=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log lambda and the penalties of an attached penalty."""
        for measured in self._measured:
            measured.end_epoch()
        if self._attachment:
            suffix = self._suffix(trainer, pl_module)
            for name, value in self._attachment.end_epoch(pl_module).items():
                # Equal on all ranks already; the maximum of equals is exact.
                pl_module.log(name + suffix, value, sync_dist=True, reduce_fx="max")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what the penalty achieved, now that the progress bar is closed."""
        for measured in self._measured:
            if measured.penalty.penalised_steps:
                measured.report(trainer.current_epoch)
        if self.update_interval is None:
            return
        penalties = [penalty for penalty in self._penalties if penalty.penalised_steps]
        if penalties and not any(penalty.updates for penalty in penalties):
            rank_zero_warn(never_updated_notice(self._steps_since_update, self.update_interval))

    def _suffix(self, trainer: Trainer, pl_module: LightningModule) -> str:
        several = len(penalties_of(trainer, pl_module)) > 1
        return f"/{self._module}" if several and self._module else ""

    def _update(self, penalty: RelatedFeaturePenalty) -> None:
        measured = penalty.update_weights(_as_tensor(self.beta), self.rule)
        if self._attachment:
            self._attachment.measured = measured
        if measured is not None and not self._warned and (notice := collapse_notice(penalty)):
            self._warned = True
            rank_zero_warn(notice)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs; a penalty of the module is in the module's state."""
        attached = {"penalty": self._attachment.state_dict()} if self._attachment else {}
        return {"steps_since_update": self._steps_since_update, **attached}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint."""
        self._steps_since_update = restored(state_dict, "steps_since_update", int)
        if self._attachment and "penalty" in state_dict:
            self._attachment.load_state_dict(state_dict["penalty"])


def _as_tensor(beta: float | list[float]) -> float | Tensor:
    return torch.tensor(beta, dtype=torch.float64) if isinstance(beta, list) else beta


def _check_unused(**attached_only: object) -> None:
    for name, value in attached_only.items():
        if value is not None:
            raise InputError(
                f"{name} = {value!r} is for a penalty that this callback attaches: give "
                "penalty=RelatedFeaturePenalty({...}) as well."
            )
