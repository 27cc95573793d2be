"""Checks and completes the options of the trainer before anything is made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import Namespace, dict_to_namespace
from lightning import Callback

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.callbacks.checkpointing import BestCheckpoint
from fairrf_lightning.callbacks.run_files import PredictionWriter
from fairrf_lightning.class_paths import import_class
from fairrf_lightning.errors import InputError

_DEFAULT_LOGGER = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": ""}}
# Callbacks of every command, with the options that set them.
BUILT_IN: dict[str, type[Callback]] = {
    "pretrain": PretrainCallback,
    "lambda_update": LambdaUpdateCallback,
    "checkpoint": BestCheckpoint,
    "predictions": PredictionWriter,
}


def class_of(spec: Any) -> type:
    """Return the class that a parsed ``class_path`` names."""
    found: type = import_class(spec.class_path)
    return found


def check_trainer_options(config: Namespace) -> None:
    """Raise if options of the trainer contradict what the command needs.

    Args:
        config: The parsed options of the command, before defaults of the data set are filled in.
    """
    if config.trainer.get("barebones"):
        raise InputError(
            "--trainer.barebones true switches off logging, checkpoints and metrics, which are needed here.\n"
            "For a lean run: --trainer.logger false --trainer.enable_checkpointing false "
            "--trainer.enable_progress_bar false --trainer.enable_model_summary false"
        )
    if config.get("lr_scheduler") and not config.get("optimizer"):
        raise InputError(
            "--lr_scheduler has no effect without --optimizer: name both, for example --optimizer Adam "
            "--optimizer.lr 0.001. Or set --model.lr_scheduler, which goes with the model's own optimiser."
        )
    for callback in _as_list(config.trainer.get("callbacks")):
        _check_callback(callback, config)


def _check_callback(callback: Any, config: Namespace) -> None:
    made = class_of(callback)
    option = next((name for name, built_in in BUILT_IN.items() if issubclass(made, built_in)), None)
    if option is None:
        return
    if option == "lambda_update" and (callback.get("init_args") or {}).get("penalty"):
        given = config.lambda_update
        if given.beta is None and given.every_n_steps == "auto":
            return  # it takes the place of the built-in one
        raise InputError(
            "--lambda_update.* has no effect: --trainer.callbacks has a LambdaUpdateCallback with a penalty. "
            "Set beta and every_n_steps there."
        )
    raise InputError(
        f"--trainer.callbacks: {made.__name__} is built in already. Leave it out, and set its options by "
        f"--{option}.* (see fit --help)."
    )


def without_replaced(built_in: list[Callback], given: Any) -> list[Callback]:
    """Return the built-in callbacks without those that a callback of the user's takes the place of."""
    attaches = any(isinstance(item, LambdaUpdateCallback) for item in _as_list(given))
    return [item for item in built_in if not (attaches and isinstance(item, LambdaUpdateCallback))]


def place_logs(trainer: Namespace) -> None:
    """Choose the CSV logger by default, and ``default_root_dir`` for loggers without a folder."""
    if trainer.logger in (None, True):
        trainer.logger = dict_to_namespace(_DEFAULT_LOGGER)
    root = str(Path(trainer.get("default_root_dir") or ".").expanduser())
    for logger in _as_list(trainer.logger):
        options = logger.get("init_args") if isinstance(logger, Namespace) else None
        # Short names leave the folder empty; "." is W&B's own default.
        if options is not None and options.get("save_dir") in ("", "."):
            options.save_dir = root


def _as_list(items: Any) -> list[Any]:
    if isinstance(items, list):
        return items
    return [items] if items else []
