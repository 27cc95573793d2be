"""Algorithm 1, first phase: train without the penalty, then enable it."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fairrf_lightning.callbacks.checkpointing import PenalisedCheckpoint
from fairrf_lightning.checkpoints import restored
from fairrf_lightning.errors import InputError
from fairrf_lightning.notices import vanilla_notice
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.run_state import (
    OptimiserSteps,
    continues_run,
    find_penalties,
    in_pretraining,
    penalties_of,
    start_fresh,
)


class PretrainCallback(Callback):
    """Trains without the penalty first, then enables it.

    Set at most one of ``epochs``, ``steps`` and ``patience``; the default is one epoch. Each fit starts
    fresh: with pretraining, and with the penalties' initial lambda. A fit that resumes from a checkpoint,
    or a second fit of the same Trainer, continues. After a fit the penalties are on.

    Args:
        epochs: Number of epochs without the penalty; 0 for no pretraining.
        steps: Number of optimiser steps without the penalty. A batch in which several optimisers step
            counts once.
        patience: Enable the penalty once ``monitor`` has not improved for this many validation runs.
        monitor: The metric for ``patience``; lower is better. It must not need the sensitive attribute.
        min_delta: Minimum change of ``monitor`` that counts as an improvement.
        reset_monitors: When pretraining ends, reset the best score of ModelCheckpoint, EarlyStopping and
            ReduceLROnPlateau. Scores with and without the penalty are not comparable: the loss rises when
            the penalty comes on.

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
            minimum = 1 if name == "patience" else 0
            if value < minimum:
                raise InputError(f"{name} = {value}: expected a whole number of {minimum} or more.")
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

    @property
    def pretraining(self) -> str:
        """The length of pretraining in words, such as ``epochs 1``."""
        limits = {"epochs": self.epochs, "steps": self.steps, "patience": self.patience}
        return ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)

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
        """Warn of callbacks that would keep an epoch of pretraining."""
        if self.reset_monitors or self._is_over(trainer) or not in_pretraining(trainer, pl_module):
            return
        if monitors := _monitors_without_penalty(trainer):
            rank_zero_warn(
                f"{', '.join(monitors)}: this metric does not include the penalty and gets worse when "
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
            _reset_scores(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Count the optimiser's steps."""
        self._steps.end_batch(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the monitored metric with its best value."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.patience is not None and fitting and not self._finished:
            self._compare(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the penalty never came on; the progress bar is closed by now."""
        if in_pretraining(trainer, pl_module):
            eta = max(float(torch.as_tensor(p.eta).max()) for p in penalties_of(trainer, pl_module))
            rank_zero_warn(str(vanilla_notice(eta, 0, pretraining=self.pretraining)))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the penalties on, for a later Trainer without this callback."""
        for penalty in self._penalties:
            penalty.enabled = True
        self._penalties = []

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the penalties on: Lightning does not call ``teardown`` after an error."""
        self.teardown(trainer, pl_module, "fit")

    def _is_over(self, trainer: Trainer) -> bool:
        if self.epochs is not None:
            return trainer.current_epoch >= self.epochs
        if self.steps is not None:
            return self._steps.count >= self.steps
        return self._finished

    def _compare(self, trainer: Trainer) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise InputError(
                f"monitor = {self.monitor!r} is not among the logged metrics ({known}): "
                "log it in validation, or pretrain for a number of epochs or steps."
            )
        # One decision for all ranks, even if they logged different values.
        current = float(trainer.strategy.reduce(value.detach().float().clone(), reduce_op="mean"))
        improved = current < self._best - self.min_delta
        self._best = current if improved else self._best
        self._waited = 0 if improved else self._waited + 1
        self._finished = self.patience is not None and self._waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
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


def _monitors_without_penalty(trainer: Trainer) -> list[str]:
    """Return the callbacks that compare epochs by a metric without the penalty, such as the task loss.

    Such a metric gets worse when the penalty comes on, so that the best epoch is one of pretraining.
    """
    return [
        f"{type(callback).__name__}(monitor={callback.monitor!r})"
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping | ModelCheckpoint)
        and not isinstance(callback, PenalisedCheckpoint)
        and callback.monitor is not None
        and not any(word in callback.monitor for word in ("objective", "penalty"))
    ]


def _reset_scores(trainer: Trainer) -> None:
    """Make the epochs so far count as worse than any later one.

    Their checkpoints stay until a later one replaces them, so a run that ends early has a checkpoint.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None and callback.best_k_models:
            worst = _worst(callback.mode)
            callback.best_k_models = dict.fromkeys(callback.best_k_models, worst)
            callback.best_model_score = callback.kth_value = worst
        elif isinstance(callback, EarlyStopping):
            callback.best_score = _worst(callback.mode)
            callback.wait_count = 0
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            config.scheduler.best = float(_worst(config.scheduler.mode))


def _worst(mode: str) -> Tensor:
    return torch.tensor(torch.inf if mode == "min" else -torch.inf)
