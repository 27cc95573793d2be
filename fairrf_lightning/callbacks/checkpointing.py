"""Checkpoints of a run: ``best.ckpt`` to use, ``last.ckpt`` to resume from."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from fairrf_lightning.callbacks.stopping import StopRequest
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.run_state import in_pretraining

BEST = "best.ckpt"
LAST = "last.ckpt"
_SCORES = (
    "best_k_models",
    "best_model_path",
    "best_model_score",
    "kth_best_model_path",
    "kth_value",
    "last_model_path",
)


class BestCheckpoint(ModelCheckpoint):
    """ModelCheckpoint with a ``last.ckpt`` that is always the newest and resumes bit for bit.

    Lightning's ModelCheckpoint writes ``last.ckpt`` only with a new best. Some of its checkpoints cannot be
    resumed from: after the last batch of an epoch, a resumed run repeats or skips batches. This one saves

    - at the end of each epoch (or of every n-th, by ``every_n_epochs``), after validation;
    - after a validation within an epoch;
    - every ``every_n_train_steps`` steps or ``train_time_interval``, after the batch;
    - on a signal to stop, after the batch.

    A checkpoint can become the best one only if the monitored metric was computed with its weights.
    """

    stop_request: StopRequest | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder."""
        with warnings.catch_warnings():
            # on_fit_start raises an error instead, except for a resumed run in its own folder.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
            super().setup(trainer, pl_module, stage)
        self._due = self._validated = self._stopping = False
        self._resumed_step: int | None = None
        self._unstepped: dict[str, float] = {}
        self._is_off = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        if self.save_on_exception or self._save_on_train_epoch_end is False:
            raise InputError(
                "--checkpoint.save_on_exception and save_on_train_epoch_end: such checkpoints cannot be "
                "resumed from exactly.\n"
                "Leave them out; last.ckpt is saved after each epoch and on SIGTERM or Ctrl-C."
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if the folder has checkpoints of another run; delete unfinished files of a killed one."""
        folder = Path(str(self.dirpath))
        if trainer.is_global_zero and trainer.ckpt_path:
            for unfinished in folder.glob(".*.ckpt.*.part"):
                unfinished.unlink(missing_ok=True)
        if not (trainer.ckpt_path or self._is_off):
            check_no_other_run(folder, lambda path: self.file_exists(str(path), trainer))

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen for signals; Lightning has just set its own handlers."""
        if self.stop_request is not None:
            self.stop_request.listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen for signals, and count the steps since the last save."""
        self.on_sanity_check_start(trainer, pl_module)
        # A node without the first one's disk does not find the best checkpoint, and would forget its score.
        # On the CPU: other ranks would get the scores on the GPU of the first one.
        scores = move_data_to_device({name: getattr(self, name) for name in _SCORES}, torch.device("cpu"))
        for name, value in trainer.strategy.broadcast(scores).items():
            setattr(self, name, value)
        if self._resumed_step not in (None, trainer.global_step):
            raise InputError(
                f"--ckpt_path {trainer.ckpt_path}: it was saved at step {self._resumed_step}, but its loops "
                f"are at step {trainer.global_step}.\nThe file is damaged: restore it from a copy."
            )
        super().on_train_start(trainer, pl_module)
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in self._unstepped:
                pl_module.lr_scheduler_step(config.scheduler, self._unstepped[config.monitor])
        self._unstepped = {}
        self._last_global_step_saved = trainer.global_step
        if self._stopping:
            trainer.should_stop = True  # the run had stopped early when it was saved

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Save after a batch within an epoch if it is time to, or if a signal asks to stop."""
        loop = trainer.fit_loop.epoch_loop
        self._due = self._due or self._is_due(trainer)
        stop = self._is_asked_to_stop(trainer)
        wanted = stop or (self.save_last and (self._due or trainer.global_step == trainer.max_steps))
        if not wanted:
            return
        at_end = loop._num_ready_batches_reached()  # noqa: SLF001 - saved when the epoch has ended
        if not (at_end or loop._should_accumulate() or _validates_now(trainer)):  # noqa: SLF001
            self._save_last(trainer, stop=stop)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mark the metrics as new; save after a validation within an epoch."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self._validated = True
        loop = trainer.fit_loop.epoch_loop
        if loop._num_ready_batches_reached():  # noqa: SLF001 - saved when the epoch has ended
            return
        if loop._should_accumulate():  # noqa: SLF001 - the gradients so far would be lost
            self._save_best(trainer)
            self._due = True
        else:
            self._save_both(trainer, stop=self._is_asked_to_stop(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after a whole epoch; one that ended early was saved with its last batch."""
        if not trainer.fit_loop.epoch_loop._num_ready_batches_reached():  # noqa: SLF001
            return
        number = trainer.current_epoch + 1
        ends = number == trainer.max_epochs or trainer.should_stop or trainer.global_step == trainer.max_steps
        stop = self._is_asked_to_stop(trainer)
        if number % (self._every_n_epochs or 1) == 0 or ends or self._due or stop:
            self._unstepped = _plateau_values(trainer)
            self._save_both(trainer, stop=stop)
            self._unstepped = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop listening; save the last steps."""
        if self.stop_request is not None:
            self.stop_request.ignore()
        if self.save_last and self._last_global_step_saved != trainer.global_step:
            self._save_last(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop listening; the loops are in a state that cannot be resumed from."""
        if self.stop_request is not None:
            self.stop_request.ignore()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return super().state_dict() | {"stopping": self._stopping, "unstepped": self._unstepped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, also if the folder of the run was moved or is spelt differently."""
        self._stopping = bool(state_dict.get("stopping"))
        self._unstepped = dict(state_dict.get("unstepped", {}))
        super().load_state_dict(_moved(state_dict, str(self.dirpath)))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the step, which Lightning restores later and without a check."""
        self._resumed_step = checkpoint.get("global_step")

    def _is_due(self, trainer: Trainer) -> bool:
        every = self._every_n_train_steps
        due = every > 0 and trainer.global_step // every > self._last_global_step_saved // every
        if self._train_time_interval is None:
            return due
        waited = time.monotonic() - (self._last_time_checked or 0.0)
        return bool(trainer.strategy.broadcast(waited >= self._train_time_interval.total_seconds()))

    def _save_both(self, trainer: Trainer, *, stop: bool) -> None:
        # The best first: last.ckpt names it, and must not be ahead of it.
        self._save_best(trainer)
        if self.save_last or stop:
            self._save_last(trainer, stop=stop)

    def _save_best(self, trainer: Trainer) -> None:
        if self._has_new_metric(trainer) and not self._is_off:
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
        self._validated = False

    def _has_new_metric(self, trainer: Trainer) -> bool:
        if self.monitor is None:  # without a monitor the newest is the best, which is last.ckpt
            return not self.save_last or self.save_top_k == -1
        trained = trainer.fit_loop.epoch_loop._results.valid_items()  # noqa: SLF001
        return self._validated or any(item.meta.name == self.monitor for _, item in trained)

    def _save_last(self, trainer: Trainer, *, stop: bool = False) -> None:
        if self._is_off:
            return
        self._due = False
        self._stopping = trainer.should_stop
        self._last_time_checked = time.monotonic()
        self.last_model_path = self.format_checkpoint_name({}, self.CHECKPOINT_NAME_LAST)
        for logger in trainer.loggers:
            logger.save()
        self._save_checkpoint(trainer, self.last_model_path)
        if stop and self.stop_request is not None:
            self.stop_request.stop(trainer, self.last_model_path)

    def _is_asked_to_stop(self, trainer: Trainer) -> bool:
        return self.stop_request is not None and self.stop_request.agreed(trainer)


class PenalisedCheckpoint(ModelCheckpoint):
    """ModelCheckpoint for a fairness gap: it skips models whose gap carries no information.

    These are the epochs of pretraining, and models that give every validation row the same decision (where
    ``val_positive_share`` is logged, as FairRFModule does). An untrained model has no gap, so the
    smallest gap alone would choose it. The arguments are those of ModelCheckpoint.
    """

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Return whether this model is among the best ``save_top_k`` that count."""
        share = trainer.callback_metrics.get("val_positive_share")
        constant = share is not None and is_constant(float(share))
        skipped = constant or in_pretraining(trainer, trainer.lightning_module)
        # One decision for all ranks: a module of the user's may log a share of each rank's own rows.
        if not trainer.strategy.reduce_boolean_decision(not skipped, all=False):
            return False
        return super().check_monitor_top_k(trainer, current)


def check_no_other_run(folder: Path, exists: Callable[[Path], bool] = Path.is_file) -> None:
    """Raise if a folder has checkpoints of another run."""
    for name in (LAST, BEST):
        if exists(folder / name):
            raise InputError(
                f"{folder} has the {name} of another run.\n"
                "Name another folder by --checkpoint.dirpath, or resume that run: "
                f"--ckpt_path {folder / LAST}"
            )


def chosen_by(trainer: Trainer) -> ModelCheckpoint | None:
    """Return the callback that chooses the best checkpoint of the run: the built-in one, if there is one.

    ``trainer.checkpoint_callback`` is the first one, which may be a callback of the user's that chooses by
    the sensitive attribute.
    """
    found = [item for item in trainer.checkpoint_callbacks if isinstance(item, ModelCheckpoint)]
    return next((item for item in found if isinstance(item, BestCheckpoint)), found[0] if found else None)


def _moved(state: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the state with the current paths of its files, in ``folder``.

    Lightning compares paths as text. With another spelling it would forget the best score, or delete the new
    best file as if it were the previous one. The state is unchanged if the files are not in ``folder``.
    """
    scores: dict[str, Any] = state.get("best_k_models", {})
    moved = {path: str(Path(folder) / Path(path).name) for path in scores}
    if not all(Path(path).is_file() for path in moved.values()):
        return state
    renamed = {"dirpath": folder, "best_k_models": {moved[path]: score for path, score in scores.items()}}
    for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
        renamed[key] = str(Path(folder) / Path(state[key]).name) if state.get(key) else ""
    return state | renamed


def _plateau_values(trainer: Trainer) -> dict[str, float]:
    """Return the values for the next step of ReduceLROnPlateau, because Lightning saves before that step."""
    return {
        config.monitor: float(trainer.callback_metrics[config.monitor])
        for config in trainer.lr_scheduler_configs
        if config.reduce_on_plateau
        and config.interval == "epoch"
        and config.monitor in trainer.callback_metrics
        and (trainer.current_epoch + 1) % config.frequency == 0
    }


def _validates_now(trainer: Trainer) -> bool:
    """Return whether a validation follows this batch."""
    fetcher: Any = trainer.fit_loop._data_fetcher  # noqa: SLF001
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)  # noqa: SLF001
