"""Checks of ``--ckpt_path`` against the command line, before Lightning loads the checkpoint."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LRSchedulerTypeTuple

from fairrf_lightning.checkpoint_file import load_checkpoint
from fairrf_lightning.class_paths import import_class
from fairrf_lightning.errors import InputError
from fairrf_lightning.short_names import SHORT_NAMES

_DATA_CLASSES = {path.rpartition(".")[2] for path in SHORT_NAMES["data"].values()}
_PACKAGE = __name__.partition(".")[0]
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CLASS_KEYS = ("class_path", "_class_path")
# Written by Lightning, never imported: Lightning compares it with a list of its own.
_NOT_IMPORTED = ("_instantiator",)


def check_checkpoint(config: Namespace, subcommand: str) -> dict[str, Any]:
    """Return the checkpoint of ``--ckpt_path``, or an empty dict without one.

    Raises:
        InputError: If it is unreadable, of other data, contradicts the options given, or names a class
            that is neither of this package nor named by the user.
    """
    path = config.get("ckpt_path")
    if not path:
        return {}
    checkpoint = load_checkpoint(path)
    given = config.data.class_path.rpartition(".")[2] if config.get("data") else ""
    trained_on = _DATA_CLASSES & set(checkpoint)
    if trained_on and given in _DATA_CLASSES - trained_on:
        names = " or ".join(sorted(trained_on))
        raise InputError(f"--ckpt_path {path}: this checkpoint was trained on {names}, not on {given}.")
    options = checkpoint.get("hyper_parameters", {})
    for part in ("hyper_parameters", *trained_on):
        check_plain(checkpoint.get(part), part, f"--ckpt_path {path}")
    named = {text for text, _ in _texts(config.clone().as_dict())}
    plain = plain_parameters(import_class(config.model.class_path))
    check_class_paths(options, named, f"--ckpt_path {path}", plain)
    _check_options(config.model, options, path)
    if given in trained_on:
        _check_data_state(checkpoint[given], config.data if subcommand == "fit" else None, path)
    return checkpoint


@contextmanager
def restoring(path: str | None, option: str = "--ckpt_path ") -> Iterator[None]:
    """Raise one clear error if a checkpoint cannot be restored, whatever its restoration raises.

    Args:
        path: The checkpoint, or ``None`` if there is nothing to restore.
        option: Option that named the checkpoint, for the error.

    Raises:
        InputError: In place of an error that came from within the restoration.
    """
    try:
        yield
    except Exception as error:
        if path is None or not _came_from_restoring(error):
            raise
        if isinstance(error, InputError):
            if str(path) in str(error):
                raise
            raise InputError(f"{option}{path}: {error}") from error
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{option}{path}: the checkpoint does not fit this model and data "
            f"({type(error).__name__}: {reason}).\n"
            "Give the options that it was trained with; if they are right, the file is damaged."
        ) from error


def _came_from_restoring(error: BaseException) -> bool:
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return any(name.startswith(("restore", "_restore", "load_state_dict")) for name in names)


def weights_digest(state_dict: Mapping[str, Any]) -> str:
    """Return the sha256 of a model's weights: the same for two files of one model, whatever their names."""
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        if isinstance(value, torch.Tensor):  # the others are modules' extra states, which are no weights
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_plain(value: Any, part: str, path: str) -> None:
    """Raise if options hold anything but plain values, which could not be compared with those given."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            check_plain(item, part, path)
    elif not isinstance(value, str | int | float | None):
        raise InputError(
            f"{path}: its part {part} is malformed (a {type(value).__name__} was found). "
            "Restore it from a copy, or train again."
        )


def check_class_paths(
    options: Mapping[str, Any],
    named: Collection[str],
    path: str,
    plain: Collection[str] | None,
    hint: Callable[[str, str], str] = lambda option, text: (
        f"If you trust it, name it yourself: --{option} {text}"
    ),
) -> None:
    """Raise if a checkpoint's options name a class that is neither of this package nor named by the user.

    Args:
        options: Options of a model or of data, as the checkpoint holds them.
        named: Import paths that the user has named.
        path: The checkpoint, for the error.
        plain: Options that are text whatever it looks like; ``None`` if all of them are.
        hint: Returns what to do, given the option and the class.
    """
    for text, place in _texts(options):
        key = place.rpartition(".")[2]
        if key in _NOT_IMPORTED or ((plain is None or place in plain) and key not in _CLASS_KEYS):
            continue
        if (key in _CLASS_KEYS or _DOTTED.fullmatch(text)) and text not in named and not _is_trusted(text):
            option = "model" if place == "_class_path" else f"model.{place.removesuffix('.class_path')}"
            raise InputError(
                f"{path}: it asks for the class {text!r}, which is not of this package.\n{hint(option, text)}"
            )


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield value, place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, place)


def plain_parameters(class_type: type[Any]) -> set[str]:
    """Return the parameters of a class that are text, whatever it looks like."""
    parameters = inspect.signature(class_type).parameters.values()
    return {item.name for item in parameters if item.annotation in (str, "str", "str | None")}


def _is_trusted(class_path: str) -> bool:
    """Whether a path names a class of this package, or an optimiser or scheduler of torch."""
    module_name, _, name = class_path.rpartition(".")
    if module_name.partition(".")[0] not in (_PACKAGE, "torch", "lightning"):
        return False
    # Looked up, not imported: everything that a checkpoint of ours can name is loaded by now.
    found = getattr(sys.modules.get(module_name), name, None)
    if not inspect.isclass(found):
        return False
    own = found.__module__.partition(".")[0] == _PACKAGE
    return own or issubclass(found, (torch.optim.Optimizer, *LRSchedulerTypeTuple))


def _check_options(model: Namespace, trained: Mapping[str, Any], path: str) -> None:
    # LightningCLI lets the checkpoint's options win without a word.
    defaults = inspect.signature(import_class(model.class_path)).parameters
    for option, value in vars(model.get("init_args") or Namespace()).items():  # type: ignore[no-untyped-call]
        known = trained.get(option)
        if isinstance(value, Namespace):
            value = value.class_path  # noqa: PLW2901
            known = known.get("class_path") if isinstance(known, Mapping) else known
        if value in (None, known) or option not in trained or _is_default(value, defaults[option].default):
            continue
        raise InputError(
            f"--model.{option} {value}: the checkpoint {path} was trained with {known} and keeps it. "
            "Leave the option out, or train without --ckpt_path."
        )


def _check_data_state(state: Any, data: Namespace | None, path: str) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get("encoder"), Mapping):
        raise InputError(
            f"--ckpt_path {path}: its state of the data is malformed (a {type(state).__name__} was found, or "
            "it has no encoder). Restore it from a copy, or train again."
        )
    if data is not None:
        _check_data_options(data, {**state.get("table_options", {}), **state}, path)


def _check_data_options(data: Namespace, trained: Mapping[str, Any], path: str) -> None:
    """Raise if a resumed run is asked to train on something else."""
    for option, value in _as_plain(data.get("init_args") or {}).items():
        known = trained.get(option)
        if option not in trained or option == "missing_values" or value in (None, known):
            continue
        if not _is_default(value, _default_of(data.class_path, option)):
            raise InputError(
                f"--data.{option} {value}: the checkpoint {path} was trained with {known}, and a resumed run "
                "keeps it.\nLeave the option out, or train without --ckpt_path."
            )


def _as_plain(value: Any) -> Any:
    """Return a parsed value as the checkpoint keeps it: dicts and lists."""
    if isinstance(value, Namespace):
        value = value.as_dict()
    if isinstance(value, Mapping):
        return {key: _as_plain(item) for key, item in value.items()}
    return [_as_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _default_of(class_path: str, option: str) -> Any:
    for cls in import_class(class_path).__mro__:
        parameter = inspect.signature(cls).parameters.get(option)
        if parameter is not None:
            return _as_plain(parameter.default)
    return inspect.Parameter.empty


def _is_default(value: Any, default: Any) -> bool:
    path = f"{default.__module__}.{default.__qualname__}" if inspect.isclass(default) else None
    return bool(value in (default, path))
