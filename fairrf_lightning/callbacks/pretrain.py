"""Algorithm 1, first phase: train without the penalty, then switch it on."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from fairrf_lightning.callbacks.lookup import find_penalties
from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


class PretrainCallback(Callback):
    """Keeps every penalty of the module off for a while, then on for the rest of the run.

    Give one of ``epochs``, ``steps`` and ``patience``; with none of them, one epoch.

    Args:
        epochs: Epochs to pretrain; 0 for none.
        steps: Optimiser steps to pretrain.
        patience: Pretrain until ``monitor`` has not improved for this many validations in a row.
        monitor: The metric that ``patience`` watches; lower is better. It has to be known without the
            sensitive attribute.
        min_delta: The least change of ``monitor`` that counts as an improvement.

    >>> PretrainCallback(patience=2).state_dict()
    {'best': inf, 'waited': 0, 'finished': False}
    """

    def __init__(
        self,
        epochs: int | None = None,
        steps: int | None = None,
        patience: int | None = None,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
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
        self._best = float("inf")
        self._waited = 0
        self._finished = False
        self._penalties: list[RelatedFeaturePenalty] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for the penalties anew in each fit."""
        del trainer, pl_module
        self._penalties = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Set the phase that this step belongs to."""
        enabled = self._is_over(trainer)
        self._penalties = self._penalties or find_penalties(trainer, pl_module, self)
        for penalty in self._penalties:
            penalty.enabled = enabled

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's hook
        """Watch the monitored loss."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.patience is not None and fitting and not self._finished:
            self._watch(trainer)

    def _is_over(self, trainer: Trainer) -> bool:
        if self.epochs is not None:
            return trainer.current_epoch >= self.epochs
        if self.steps is not None:
            return trainer.global_step >= self.steps
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
        return {"best": self._best, "waited": self._waited, "finished": self._finished}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was."""
        self._best = state_dict["best"]
        self._waited = state_dict["waited"]
        self._finished = state_dict["finished"]
