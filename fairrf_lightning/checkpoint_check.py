"""What is checked of ``--ckpt_path`` before Lightning loads it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from fairrf_lightning.errors import InputError
from fairrf_lightning.short_names import SHORT_NAMES

_DATA_CLASSES = {path.rpartition(".")[2] for path in SHORT_NAMES["data"].values()}


def check_checkpoint(config: Namespace) -> None:
    """Refuse a checkpoint that cannot be read, is of other data, or contradicts the options given."""
    path = config.get("ckpt_path")
    if not path or path in ("best", "last"):
        return
    checkpoint = load_checkpoint(path)
    trained_on = _DATA_CLASSES & set(checkpoint)
    given = config.data.class_path.rpartition(".")[2] if config.get("data") else ""
    if trained_on and given in _DATA_CLASSES - trained_on:
        names = " or ".join(sorted(trained_on))
        raise InputError(f"--ckpt_path {path}: this checkpoint was trained on {names}, not on {given}.")
    _check_options(config.model, checkpoint.get("hyper_parameters", {}), path)


def load_checkpoint(path: str) -> dict[str, Any]:
    """Return what a checkpoint of Lightning holds; say so if the file is none."""
    if not Path(path).is_file():
        raise InputError(f"--ckpt_path {path}: there is no such file.")
    try:
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        raise InputError(f"--ckpt_path {path}: this is not a readable checkpoint ({reason})") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise InputError(f"--ckpt_path {path}: this is not a checkpoint of a Lightning run.")
    return checkpoint


def weights_digest(state_dict: Mapping[str, Any]) -> str:
    """Return the sha256 of a model's weights: the same for two files of one model, whatever their names."""
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        if isinstance(value, torch.Tensor):  # the others are modules' extra states, which are no weights
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_options(model: Namespace, trained: dict[str, Any], path: str) -> None:
    # LightningCLI lets the checkpoint's options win without a word.
    module, _, name = model.class_path.rpartition(".")
    defaults = inspect.signature(getattr(import_module(module), name)).parameters
    for option, value in vars(model.get("init_args") or Namespace()).items():  # type: ignore[no-untyped-call]
        known = trained.get(option)
        if isinstance(value, Namespace):
            value, known = value.class_path, known["class_path"] if isinstance(known, dict) else known  # noqa: PLW2901
        if value in (None, known) or option not in trained or _is_default(value, defaults[option].default):
            continue
        raise InputError(
            f"--model.{option} {value}: the checkpoint {path} was trained with {known} and keeps it. "
            "Leave the option out, or train anew without --ckpt_path."
        )


def _is_default(value: Any, default: Any) -> bool:
    path = f"{default.__module__}.{default.__qualname__}" if inspect.isclass(default) else None
    return bool(value in (default, path))
