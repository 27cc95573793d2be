"""Lightning's WandbLogger for machines without an account or a network."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn

from fairrf_lightning.errors import InputError
from fairrf_lightning.printed_command import install_command
from fairrf_lightning.tracking.access import chosen_mode, first_line, obstacle

if TYPE_CHECKING:
    from wandb import Run

# Seconds; W&B's own are 90 and no limit. What was not sent by then is on disk, for `wandb sync`.
_TIMEOUTS = {"init_timeout": 30.0, "finish_timeout": 30.0}
_TIMEOUTS_WITH_CHECKPOINTS = _TIMEOUTS | {"finish_timeout": 600.0}  # they may be large


class WandbLogger(LightningWandbLogger):
    """Lightning's WandbLogger, which logs offline where that one would ask, wait or fail.

    Without an API key, with one that the server does not take, or without a network the run is
    logged offline, after one line that says so. If the network goes away later, training goes on.
    A mode that you choose yourself (``mode=``, ``offline=``, ``WANDB_MODE``) is left alone.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Run:
        """The run of W&B; started on first use, in one process of a job."""
        import wandb  # noqa: PLC0415 - an optional dependency

        if self._experiment is None and wandb.run is None and getattr(self, "_attach_id", None) is None:
            self._choose_mode()
            try:
                self._start()
            except wandb.errors.Error as error:
                if self._wandb_init.get("mode") == "offline":
                    raise
                self._go_offline(first_line(error))
                self._start()
        return cast("Run", super().experiment)

    def _start(self) -> None:
        # As Lightning does it. jsonargparse reads here that further options are those of wandb.init.
        import wandb  # noqa: PLC0415

        self._experiment = wandb.init(**self._wandb_init)
        axis = "global_step" if self._wandb_init.get("sync_tensorboard") else "trainer/global_step"
        self._experiment.define_metric(axis)
        self._experiment.define_metric("*", step_metric=axis, step_sync=True)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Log checkpoints as artifacts, if asked to; a failure does not end the training."""
        self._attempt(super().after_save_checkpoint, checkpoint_callback)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Log the last checkpoints, if asked to; a failure does not end the training."""
        self._attempt(super().finalize, status)

    def _choose_mode(self) -> None:
        if self._offline:
            # Lightning sets an environment variable, which W&B may have read before.
            self._wandb_init["mode"] = "offline"
        if self._wandb_init.get("anonymous") is None:
            self._wandb_init.pop("anonymous", None)  # W&B warns of it, and Lightning always passes it
        limits = _TIMEOUTS_WITH_CHECKPOINTS if self._log_model else _TIMEOUTS
        timeouts = {
            name: value for name, value in limits.items() if f"WANDB_{name.upper()}" not in os.environ
        }
        if self._wandb_init.get("settings") is None:
            self._wandb_init["settings"] = timeouts
        decided = self._wandb_init.get("mode") or chosen_mode()
        if decided in ("online", "run") and (reason := obstacle()):
            self._go_offline(reason)

    def _go_offline(self, reason: str) -> None:
        self._wandb_init["mode"] = "offline"
        runs = Path(self.save_dir or ".") / "wandb" / "offline-run-*"
        rank_zero_info(f"W&B: {reason}, so this run is logged offline; send it later with: wandb sync {runs}")

    def _attempt(self, action: Callable[[Any], None], argument: Any) -> None:
        try:
            action(argument)
        except Exception as error:  # noqa: BLE001 - without a network the client raises many kinds
            rank_zero_warn(f"W&B: a checkpoint was not logged as an artifact: {first_line(error)}")


def use_patient_logger(loggers: Any) -> None:
    """Put our logger in the place of Lightning's WandbLogger among the loggers of a parsed config."""
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if not logger or not logger.class_path.endswith("WandbLogger"):
            continue
        if find_spec("wandb") is None:
            raise InputError(
                f"--trainer.logger wandb: the package wandb is not installed; run: {install_command('wandb')}"
            )
        if logger.class_path.startswith("lightning."):
            logger.class_path = f"{WandbLogger.__module__.rpartition('.')[0]}.{WandbLogger.__name__}"
