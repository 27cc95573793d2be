"""Checkpoint files: written whole, verified when read, and never a reason to import unknown code."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.pytorch.cli import LRSchedulerTypeTuple
from torch import Tensor

from fairrf_lightning.errors import InputError, first_line
from fairrf_lightning.files import replacing
from fairrf_lightning.presets import plain_values

_T = TypeVar("_T", int, float, bool)
_PACKAGE = __name__.partition(".")[0]
_DAMAGED = "Restore it from a copy, or train again."
# The parts that Lightning and this package read by key, with the type that they must have.
_PARTS: dict[str, type | tuple[type, ...]] = {
    "state_dict": Mapping,
    "hyper_parameters": Mapping,
    "datamodule_hyper_parameters": Mapping,
    "class_paths": Mapping,
    "callbacks": Mapping,
    "loops": Mapping,
    "optimizer_states": list,
    "lr_schedulers": list,
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "rng_state": Mapping,
}
# Options of a table whose effect is in its encoder and label codes. The state of the data names the others.
_ENCODED_OPTIONS = {"positive", "categorical", "numeric", "drop", "min_count", "max_categories"}
_WORD = re.compile(r"[\w -]*")
_CLASS_KEYS = ("class_path", "_class_path")
# Written by Lightning, never imported: Lightning compares it with a list of its own.
_INSTANTIATOR = "_instantiator"


class WholeFileIO(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, and verifies it when it is read.

    Lightning moves a finished file from ``TMPDIR``, which tears it if that is another file system.
    """

    def __init__(self) -> None:
        super().__init__()
        self._received: dict[str, bytes] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the file next to its target, sync it and rename it; on failure the previous file stays."""
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                # torch reports a full disk as RuntimeError when it writes the file itself.
                buffer = BytesIO()
                torch.save(checkpoint, buffer)
                unfinished.write_bytes(buffer.getbuffer())
        except OSError as error:
            kept = "the previous file is kept" if path.is_file() else "there is no previous file"
            raise InputError(
                f"{path}: the checkpoint cannot be written ({error.strerror}); {kept}.\n"
                "Free some space or correct the folder, then resume with --ckpt_path from the file kept."
            ) from error

    def load_checkpoint(
        self,
        path: Any,
        map_location: Any = None,
        weights_only: bool | None = None,  # noqa: FBT001 - Lightning's signature
    ) -> dict[str, Any]:
        """Return the content of a file, after verifying it."""
        if not _is_local_file_protocol(path):
            return super().load_checkpoint(path, map_location, weights_only)
        return load_checkpoint(path, content=self._received.get(str(path)))

    def share(self, path: str, broadcast: Callable[[Any], Any]) -> None:
        """Send the first process's file to all processes, which may not share a disk."""
        content = broadcast(Path(path).read_bytes() if Path(path).is_file() else None)
        if content is not None and not Path(path).is_file():
            self._received[path] = content


def load_checkpoint(path: str | Path, option: str = "", content: bytes | None = None) -> dict[str, Any]:
    """Return the content of a checkpoint of Lightning: tensors and plain values.

    Args:
        path: The file.
        option: Option that named the file, for the error: ``"--ckpt_path "``.
        content: The bytes of the file, if they were read before.

    Raises:
        InputError: If the file is missing, damaged or not a checkpoint of Lightning.
    """
    name = f"{option}{path}"
    if content is None and not Path(path).is_file():
        raise InputError(f"{name}: there is no such file or folder.")
    if Path(path).suffix in (".csv", ".parquet"):
        raise InputError(
            f"{name}: this is a table, not a checkpoint. fit writes checkpoints, such as "
            "lightning_logs/version_0/checkpoints/best.ckpt."
        )
    try:
        content = Path(path).read_bytes() if content is None else content
        _verify(content, name)
        checkpoint: Any = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: this is not a readable checkpoint ({first_line(error)})") from error
    _check_parts(checkpoint, name)
    return dict(checkpoint)


def _verify(content: bytes, name: str) -> None:
    """Raise if a record differs from its checksum, which torch writes but does not verify."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise InputError(
            f"{name}: this is not a readable checkpoint: its record {damaged} differs from its checksum. "
            f"{_DAMAGED}"
        )


def _check_parts(checkpoint: Any, name: str) -> None:
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise InputError(f"{name}: this is not a checkpoint of a Lightning run.")
    for part, expected in _PARTS.items():
        found = checkpoint.get(part)
        if part in checkpoint and (not isinstance(found, expected) or isinstance(found, bool)):
            raise malformed(name, part, found)
        if isinstance(found, Mapping) and not all(isinstance(key, str) for key in found):
            raise malformed(name, part, found)
    for weight, value in checkpoint["state_dict"].items():
        if not isinstance(value, Tensor) and not weight.endswith("_extra_state"):
            raise malformed(name, f"state_dict[{weight!r}]", value)


def malformed(name: str, part: str, found: Any) -> InputError:
    """Return the error for a part of a checkpoint that is of another type."""
    return InputError(
        f"{name}: its part {part} is malformed (a {type(found).__name__} was found), so it is not a "
        f"checkpoint of a Lightning run. {_DAMAGED}"
    )


def check_kept_options(
    given: Mapping[str, Any], checkpoint: Mapping[str, Any], data_class: type[Any], path: str
) -> None:
    """Raise if options were given that the data keep from training, and that differ from those in training.

    Args:
        given: Options of the data that the user has named.
        checkpoint: The checkpoint.
        data_class: Class of the data.
        path: The checkpoint's path, for the error.
    """
    if not given or data_class.__qualname__ not in checkpoint:
        return
    trained = kept_options(checkpoint, data_class.__qualname__, path, resumes=False)
    for option in sorted(set(given) & set(trained)):
        value, known = plain_values(given[option]), trained[option]
        if not is_same_option(option, value, known):
            raise option_kept(f"--data.{option} {value}", known, path, "an evaluation")


def kept_options(checkpoint: Mapping[str, Any], name: str, path: str, *, resumes: bool) -> dict[str, Any]:
    """Return the options that the data keep from training; those that were not given, by their effect.

    An evaluation may name another sensitive attribute; a resumed run may not.
    """
    state = checkpoint.get(name, {})
    options = state.get("table_options", {}) if isinstance(state, Mapping) else None
    if not isinstance(options, Mapping):
        raise malformed(f"--ckpt_path {path}", name, state)
    if not isinstance(state.get("encoder"), Mapping):
        raise malformed(f"--ckpt_path {path}", f"{name}.encoder", state.get("encoder"))
    given = checkpoint.get("datamodule_hyper_parameters", {})
    trained = {**options, **state, "membership": None}  # its state is one of coefficients
    if isinstance(codes := state.get("label_codes"), Mapping):
        trained["positive"] = next((label for label, code in codes.items() if code == 1), None)
    kept = _ENCODED_OPTIONS | set(trained)
    trained |= {option: value for option, value in given.items() if option in kept and value is not None}
    found = {**dict.fromkeys(kept & set(given)), **plain_values(trained)}
    return {option: value for option, value in found.items() if resumes or option != "sensitive"}


def is_same_option(option: str, value: Any, known: Any) -> bool:
    """Return whether an option was not given, or has the value that it had in training."""
    if option == "membership" and isinstance(value, str) and Path(value).is_file():
        value = str(Path(value).absolute())
    # A damaged checkpoint may hold anything here: a tensor, for one, has no truth value.
    is_number = isinstance(known, int | float)
    return value is None or str(value) == str(known) or (is_number and value == known)


def option_kept(given: str, known: Any, path: str, keeper: str) -> InputError:
    """Return the error for an option that differs from that in training."""
    return InputError(
        f"{given}: the checkpoint {path} was trained with {known}, and {keeper} keeps it.\n"
        "Leave the option out, or train a new model with it."
    )


def check_plain(value: Any, part: str, path: str) -> None:
    """Raise if options hold anything but plain values."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            check_plain(item, part, path)
    elif not isinstance(value, str | int | float | None):
        raise malformed(path, part, value)


def check_class_paths(
    options: Mapping[str, Any],
    named: Collection[str],
    path: str,
    hint: Callable[[str, str], str],
    plain: Collection[str] = (),
) -> None:
    """Raise if a checkpoint's options name a class that is neither of this package nor named by the user.

    jsonargparse also takes a class from YAML in a text and from a file that a text names, so only single
    words pass as texts that are not class paths.

    Args:
        options: Options of a model or of data, as the checkpoint holds them.
        named: Import paths that the user has named.
        path: The checkpoint, for the error.
        hint: Returns what to do, given the option and the class.
        plain: Options that cannot be a class, whatever their text looks like: see :func:`plain_parameters`.
    """
    for text, place in texts(options):
        option, key = place.partition(".")[0], place.rpartition(".")[2]
        if place == _INSTANTIATOR or text in named or _is_trusted(text):
            continue
        if key in _CLASS_KEYS or (option not in plain and not _is_word(text)):
            raise InputError(
                f"{path}: it asks for the class {text!r}, which is not of this package.\n"
                f"{hint(place.removesuffix('.class_path'), text)}"
            )


def own_classes(options: Mapping[str, Any]) -> list[str]:
    """Return the classes of the user's that options name, which a checkpoint may use only if named again."""
    named = {text for text, place in texts(options) if place.rpartition(".")[2] in _CLASS_KEYS}
    return sorted(text for text in named if not _is_trusted(text))


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and not Path(text).is_file()


def texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in options, with their places such as ``"backbone.class_path"``."""
    if isinstance(value, str):
        yield value, place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item, place)


def plain_parameters(class_type: type[Any]) -> set[str]:
    """Return the parameters of a class whose type is made of texts, numbers and lists of them."""
    found: dict[str, bool] = {}
    for owner in class_type.__mro__:
        try:
            hints = get_type_hints(owner.__init__)  # type: ignore[misc]
        except (NameError, TypeError):  # a name that only type checkers import
            hints = dict.fromkeys(inspect.signature(owner).parameters, object)
        for name, hint in hints.items():
            found.setdefault(name, _is_plain(hint))
    return {name for name, is_plain in found.items() if is_plain}


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType, list, tuple, dict):
        return all(_is_plain(item) for item in get_args(hint) if item is not Ellipsis)
    return origin is Literal or hint in (str, int, float, bool, NoneType, Path)


def _is_trusted(class_path: str) -> bool:
    """Return whether a path names a class of this package, or an optimiser or scheduler of torch."""
    module_name, _, name = class_path.rpartition(".")
    if module_name.partition(".")[0] not in (_PACKAGE, "torch", "lightning"):
        return False
    # Not imported: all classes that our checkpoints can name are loaded by now.
    found = getattr(sys.modules.get(module_name), name, None)
    if not inspect.isclass(found):
        return False
    own = found.__module__.partition(".")[0] == _PACKAGE
    return own or issubclass(found, (torch.optim.Optimizer, *LRSchedulerTypeTuple))


@contextmanager
def restoring(path: str | None, option: str = "--ckpt_path ") -> Iterator[None]:
    """Turn any error while a checkpoint is restored into an InputError that names the file and its option.

    Without a ``path`` there is nothing to restore.
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
        raise InputError(
            f"{option}{path}: the checkpoint does not fit this model and data "
            f"({type(error).__name__}: {first_line(error)}).\n"
            "Give the options that it was trained with; if they are right, the file is damaged."
        ) from error


def _came_from_restoring(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.name.startswith(("restore", "_restore", "load_state_dict")) for frame in frames):
        return True
    # torch restores any state of an optimiser, which then fails in its first step.
    return Path(frames[-1].filename).parent.name == "optim"


def weights_digest(state_dict: Mapping[str, Any]) -> str:
    """Return the sha256 of a model's weights, which identifies a model whatever its file is called."""
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        if isinstance(value, torch.Tensor):  # extra states of modules are not weights
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def restored(state: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """Return a value of a callback's state.

    Raises:
        InputError: If the value is missing or of another type.
    """
    value = state.get(name)
    if type(value) is not kind:
        raise InputError(
            f"the checkpoint's state of a callback is damaged: {name} = {value!r}, expected "
            f"{kind.__name__}. {_DAMAGED}"
        )
    return value
