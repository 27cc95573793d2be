"""Weights & Biases without an account or network: log offline instead of asking or waiting."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.errors import InputError

_LOGGER = "lightning.pytorch.loggers.WandbLogger"


def prepare_wandb(config: Any) -> None:
    """Complete the options of a W&B logger in the parsed config of a subcommand."""
    loggers = config.trainer.logger if isinstance(config.trainer.logger, list) else [config.trainer.logger]
    for logger in loggers:
        if logger is not True and logger and logger.get("class_path", "").endswith("WandbLogger"):
            _prepare(logger)


def _prepare(logger: Any) -> None:
    if find_spec("wandb") is None:
        raise InputError(
            "--trainer.logger wandb: the package wandb is not installed; "
            "run: pip install 'fairrf-lightning[wandb]'"
        )
    import wandb  # noqa: PLC0415 - an optional dependency

    if wandb.api.api_key is None and "WANDB_MODE" not in os.environ:
        logger.init_args.offline = True
        rank_zero_info(
            "W&B: no API key is configured, so this run is logged offline; "
            "send it later with: wandb sync wandb/offline-run-*"
        )
