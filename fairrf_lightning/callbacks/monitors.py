"""Callbacks and schedulers that compare epochs by a metric, across the end of pretraining."""

from __future__ import annotations

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fairrf_lightning.callbacks.penalised_checkpoint import PenalisedCheckpoint


def blind_monitors(trainer: Trainer) -> list[str]:
    """Name the callbacks that compare epochs by a metric without the penalty, for example the task loss.

    Such a metric gets worse when the penalty comes on, so that the best epoch is one of pretraining.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [
        f"{type(callback).__name__}(monitor={callback.monitor!r})"
        for callback in callbacks
        if isinstance(callback, EarlyStopping | ModelCheckpoint) and not _sees_penalty(callback)
    ]


def _sees_penalty(callback: EarlyStopping | ModelCheckpoint) -> bool:
    monitor = callback.monitor
    if monitor is None or isinstance(callback, PenalisedCheckpoint):
        return True
    return any(word in monitor for word in ("objective", "penalty"))


def forget_scores(trainer: Trainer) -> None:
    """Let every monitor start again: the epochs so far count as worse than any that follows.

    Checkpoints of these epochs stay until a later one replaces them, so a run that ends early has some.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
            _forget_checkpoints(callback)
        elif isinstance(callback, EarlyStopping):
            callback.best_score = _worst(callback.mode)
            callback.wait_count = 0
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            config.scheduler.best = float(_worst(config.scheduler.mode))
            config.scheduler.num_bad_epochs = 0


def _forget_checkpoints(callback: ModelCheckpoint) -> None:
    if callback.best_k_models:
        worst = _worst(callback.mode)
        callback.best_k_models = dict.fromkeys(callback.best_k_models, worst)
        callback.best_model_score = callback.kth_value = worst


def _worst(mode: str) -> Tensor:
    return torch.tensor(torch.inf if mode == "min" else -torch.inf)
