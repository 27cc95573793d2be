"""Algorithm 1, second phase: solve for lambda every so many steps."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from fairrf_lightning.callbacks.attachment import Attachment
from fairrf_lightning.callbacks.batch_part import BatchPart
from fairrf_lightning.callbacks.lookup import find_penalties
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import Rule, check_beta, check_rule
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.training_scale import UPDATE_INTERVAL

COLLAPSED = 0.999


class LambdaUpdateCallback(Callback):
    """Sets lambda to its closed-form optimum (the paper's Eq. 15-19) while the penalty is on.

    The penalties ``R`` are those of all rows, on all ranks, that training has seen since the last
    update: no extra forward pass. Without this callback lambda stays fixed (the paper's Fix-lambda).

    The module holds its penalty, as FairRFModule does. Or give ``penalty``, and it is attached to a
    module that knows nothing of it, without a change to its code: see ``docs/dropin.md``.

    Args:
        beta: Weight of ``|lambda|^2``: large values keep lambda near ``1 / K``, small ones let it
            collapse onto the feature with the smallest penalty. A list serves stacked models, one
            value each.
        every_n_steps: Optimiser steps between updates; ``None`` leaves lambda fixed. ``"auto"``, the
            default of the command line: 50, or fewer where the data module has few training rows.
        rule: ``kkt`` (the paper's: weight to the smallest penalties) or ``worst_case`` (weight to what
            still correlates).
        penalty: A penalty to attach to a module that holds none.
        module: With ``penalty``: name of the submodule whose output is the prediction (logits or
            probabilities); ``None`` for the LightningModule's own ``forward``.
        inputs: With ``penalty``: where the related columns are: a key of a dict batch, an index into a
            tuple batch, or a function of the batch; ``None`` for the first tensor handed to ``module``.
        target: With ``penalty``: where the batch has the labels, likewise; for ``given="positives"``.
        backward: With ``penalty`` and manual optimisation: number of the backward pass in a training
            step that the penalty goes into, from 0; ``None`` for each.

    >>> LambdaUpdateCallback(beta=0.5, every_n_steps=50).state_dict()
    {'steps_since_update': 0, 'last_global_step': 0}
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
        inputs: BatchPart | None = None,
        target: BatchPart | None = None,
        backward: int | None = None,
    ) -> None:
        check_beta(_as_tensor(beta))
        check_rule(rule)
        if isinstance(every_n_steps, int) and every_n_steps < 1:
            raise InputError(
                f"every_n_steps = {every_n_steps}: expected 1 or more optimiser steps between "
                "updates of lambda, or null to leave it fixed."
            )
        self.beta = beta
        self.every_n_steps = every_n_steps
        self.rule: Rule = rule
        self.penalty = penalty
        self._attachment: Attachment | None = None
        if penalty is not None:
            self._attachment = Attachment(penalty, module, inputs, target, backward)
        else:
            _check_unused(module=module, inputs=inputs, target=target, backward=backward)
        self._module = module
        self._steps_since_update = 0
        self._last_global_step = 0
        self._updated = False
        self._warned = False

    @property
    def state_key(self) -> str:
        """Several penalties can be attached, each to its own submodule."""
        return super().state_key if self.penalty is None else self._generate_state_key(module=self._module)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start counting anew in each fit; a checkpoint's counters are restored after this."""
        del pl_module
        if stage == "fit":
            if self.every_n_steps == "auto":
                data = getattr(trainer, "datamodule", None)
                self.every_n_steps = getattr(data, "update_interval", UPDATE_INTERVAL)
            self._steps_since_update = self._last_global_step = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the penalty, now that ``configure_model`` and the strategy have built the module."""
        if self._attachment:
            self._attachment.attach(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it was."""
        del trainer, pl_module, stage
        if self._attachment:
            self._attachment.detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the module as it was: Lightning tears nothing down after an error."""
        del exception
        self.teardown(trainer, pl_module, "fit")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Listen to the predictions of a training batch."""
        del trainer, pl_module, batch_idx
        if self._attachment:
            self._attachment.start_batch(batch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Count optimiser steps with the penalty on; update lambda when it is time."""
        if self._attachment:
            self._attachment.end_batch()
        stepped = trainer.global_step != self._last_global_step
        self._last_global_step = trainer.global_step
        if not stepped or not isinstance(self.every_n_steps, int):
            return
        penalties = [self.penalty] if self.penalty else find_penalties(trainer, pl_module, self)
        self._steps_since_update += any(penalty.enabled for penalty in penalties)
        if self._steps_since_update >= self.every_n_steps:
            self._steps_since_update = 0
            self._updated = True
            for penalty in penalties:
                self._update(penalty)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log lambda and the penalties of a module that does not know them."""
        if self._attachment:
            several = len(find_penalties(trainer, pl_module, self)) > 1
            suffix = f"/{self._module}" if several and self._module else ""
            for name, value in self._attachment.end_epoch(pl_module).items():
                # Equal on all ranks already; the maximum of equals is exact.
                pl_module.log(name + suffix, value, sync_dist=True, reduce_fx="max")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so if training was too short for a single update."""
        del trainer, pl_module
        if self.every_n_steps is not None and self._steps_since_update and not self._updated:
            rank_zero_info(
                f"lambda was never updated: the penalty was on for {self._steps_since_update} steps, and "
                f"every_n_steps is {self.every_n_steps}. Lower it, or train longer."
            )

    def _update(self, penalty: RelatedFeaturePenalty) -> None:
        measured = penalty.update_weights(_as_tensor(self.beta), self.rule)
        if self._attachment:
            self._attachment.measured = measured
        if measured is None or self._warned or penalty.weights.ndim > 1:
            return
        largest = int(penalty.weights.argmax())
        if len(penalty.weights) > 1 and float(penalty.weights[largest]) > COLLAPSED:
            self._warned = True
            rank_zero_warn(
                f"lambda has collapsed onto {penalty.feature_names[largest]!r}, the related feature "
                f"with the {'smallest' if self.rule == 'kkt' else 'largest'} penalty: the others are no "
                f"longer held down. Raise beta (now {self.beta}), or leave lambda fixed (every_n_steps=None)."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; a penalty that the module holds is in the module's state."""
        attached = {"penalty": self._attachment.state_dict()} if self._attachment else {}
        return {
            "steps_since_update": self._steps_since_update,
            "last_global_step": self._last_global_step,
            **attached,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was."""
        self._steps_since_update = state_dict["steps_since_update"]
        self._last_global_step = state_dict["last_global_step"]
        if self._attachment and "penalty" in state_dict:
            self._attachment.load_state_dict(state_dict["penalty"])


def _as_tensor(beta: float | list[float]) -> float | Tensor:
    return torch.tensor(beta, dtype=torch.float64) if isinstance(beta, list) else beta


def _check_unused(**attached_only: object) -> None:
    for name, value in attached_only.items():
        if value is not None:
            raise InputError(
                f"{name} = {value!r} is for a penalty that this callback attaches: give "
                "penalty=RelatedFeaturePenalty({...}) too."
            )
