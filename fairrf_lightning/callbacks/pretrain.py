"""Algorithm 1, first phase: train without the penalty, then switch it on."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from fairrf_lightning.callbacks.fit_progress import OptimiserSteps, continues_run, start_fresh
from fairrf_lightning.callbacks.lookup import find_penalties, in_pretraining, penalties_of
from fairrf_lightning.callbacks.monitors import blind_monitors, forget_scores
from fairrf_lightning.callbacks.restored import restored
from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


class PretrainCallback(Callback):
    """Keeps every penalty of the module off for a while, then on for the rest of the run.

    Give one of ``epochs``, ``steps`` and ``patience``; with none of them, one epoch. Each fit starts
    fresh: with pretraining, and with the penalties' initial lambda. A fit that resumes from a checkpoint,
    or a second fit of the same Trainer, continues. After a fit the penalties are on.

    Args:
        epochs: Epochs to pretrain; 0 for none.
        steps: Optimiser steps to pretrain. A batch in which several optimisers step counts once.
        patience: Pretrain until ``monitor`` has not improved for this many validations in a row.
        monitor: The metric that ``patience`` watches; lower is better. It has to be known without the
            sensitive attribute.
        min_delta: The least change of ``monitor`` that counts as an improvement.
        reset_monitors: When pretraining ends, make ModelCheckpoint, EarlyStopping and ReduceLROnPlateau
            forget their best score. Scores with and without the penalty are not comparable: the loss
            rises when the penalty comes on.

    >>> PretrainCallback(patience=2).state_dict()
    {'best': inf, 'waited': 0, 'finished': False, 'steps': 0}
    """

    def __init__(
        self,
        epochs: int | None = None,
        steps: int | None = None,
        patience: int | None = None,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        *,
        reset_monitors: bool = False,
    ) -> None:
        limits = {"epochs": epochs, "steps": steps, "patience": patience}
        given = {name: value for name, value in limits.items() if value is not None}
        if len(given) > 1:
            raise InputError(f"PretrainCallback got {given}: give one of epochs, steps, patience.")
        for name, value in given.items():
            least = 1 if name == "patience" else 0
            if value < least:
                raise InputError(f"{name} = {value}: expected a whole number of {least} or more.")
        if min_delta < 0:
            raise InputError(f"min_delta = {min_delta}: expected 0 or a positive number.")
        self.epochs = epochs if given else 1
        self.steps = steps
        self.patience = patience
        self.monitor = monitor
        self.min_delta = min_delta
        self.reset_monitors = reset_monitors
        self._penalties: list[RelatedFeaturePenalty] = []
        self._start()

    def _start(self) -> None:
        self._best = float("inf")
        self._waited = 0
        self._finished = False
        self._steps = OptimiserSteps()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start fresh in each fit; the state of a checkpoint is restored after this."""
        self._penalties = []
        if stage == "fit":
            start_fresh(trainer, penalties_of(trainer, pl_module))
            if not continues_run(trainer):
                self._start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn of callbacks whose best epoch would be one of pretraining."""
        if self.reset_monitors or self._is_over(trainer) or not in_pretraining(trainer, pl_module):
            return
        if blind := blind_monitors(trainer):
            rank_zero_warn(
                f"{', '.join(blind)}: this metric does not include the penalty and gets worse when "
                "pretraining ends, so an epoch without the penalty would be kept. Monitor 'val_objective', "
                "or give PretrainCallback(reset_monitors=True)."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Set the phase that this step belongs to."""
        self._steps.start_batch(trainer)
        enabled = self._is_over(trainer)
        if not self._penalties:
            self._penalties = find_penalties(trainer, pl_module, self)
        elif self._penalties[0].enabled == enabled:
            return
        for penalty in self._penalties:
            penalty.enabled = enabled
        if enabled and self.reset_monitors and in_pretraining(trainer, pl_module):
            forget_scores(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Count the optimiser's steps."""
        self._steps.end_batch(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's hook
        """Watch the monitored loss."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.patience is not None and fitting and not self._finished:
            self._watch(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the penalty never came on; the progress bar is closed by now."""
        if in_pretraining(trainer, pl_module):
            limits = {"epochs": self.epochs, "steps": self.steps, "patience": self.patience}
            given = ", ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
            rank_zero_warn(
                f"the penalty was never on: training ended within pretraining ({given}), so this is a "
                "vanilla model. Train longer, or pretrain for a shorter time."
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the penalties on, for a later Trainer without this callback."""
        del trainer, pl_module, stage
        for penalty in self._penalties:
            penalty.enabled = True
        self._penalties = []

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the penalties on: Lightning tears nothing down after an error."""
        del exception
        self.teardown(trainer, pl_module, "fit")

    def _is_over(self, trainer: Trainer) -> bool:
        if self.epochs is not None:
            return trainer.current_epoch >= self.epochs
        if self.steps is not None:
            return self._steps.count >= self.steps
        return self._finished

    def _watch(self, trainer: Trainer) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise InputError(
                f"monitor = {self.monitor!r} is not among the logged metrics ({known}): "
                "log it in validation, or pretrain for a number of epochs or steps."
            )
        # One decision for all ranks, whatever each of them logged.
        current = float(trainer.strategy.reduce(value.detach().float().clone(), reduce_op="mean"))
        improved = current < self._best - self.min_delta
        self._best = current if improved else self._best
        self._waited = 0 if improved else self._waited + 1
        self._finished = self.patience is not None and self._waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            "best": self._best,
            "waited": self._waited,
            "finished": self._finished,
            "steps": self._steps.count,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint."""
        self._best = restored(state_dict, "best", float)
        self._waited = restored(state_dict, "waited", int)
        self._finished = restored(state_dict, "finished", bool)
        self._steps.count = restored(state_dict, "steps", int)
