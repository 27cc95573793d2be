"""Weights & Biases without an account or network: log offline instead of asking or waiting."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.errors import InputError


def prepare_wandb(loggers: Any) -> None:
    """Complete the options of a W&B logger among the loggers of a parsed config."""
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if logger and logger.class_path.endswith("WandbLogger"):
            _prepare(logger)


def _prepare(logger: Any) -> None:
    if find_spec("wandb") is None:
        raise InputError(
            "--trainer.logger wandb: the package wandb is not installed; "
            "run: pip install 'fairrf-lightning[wandb]'"
        )
    import wandb  # noqa: PLC0415 - an optional dependency

    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False):
        # Not the logger's own `offline`: that sets an environment variable, which W&B has read by now.
        logger.init_args.mode = "offline"
        rank_zero_info(
            "W&B: no API key is configured, so this run is logged offline; "
            "send it later with: wandb sync wandb/offline-run-*"
        )
