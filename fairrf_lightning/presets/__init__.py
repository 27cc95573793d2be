"""Presets and classes by name: YAML files of data sets and callbacks, and import paths of classes.

The files live in the folders ``datamodules/`` and ``callbacks/`` at the top of the repository. A wheel holds
them next to this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import yaml

from fairrf_lightning.errors import InputError

PresetKind: TypeAlias = Literal["callbacks", "datamodules"]
_FIT = "fit"  # the file that lists what `fit` adds, not a preset


def preset_names(kind: PresetKind) -> list[str]:
    """Return the names of all presets: ours, then those in the folder ``kind`` of the current directory."""
    return list(_files(kind))


def preset(kind: PresetKind, name: str) -> dict[str, Any]:
    """Return the content of a preset.

    A preset whose ``class_path`` is the name of another one inherits its options, unless it sets them
    itself.

    Args:
        kind: The folder, ``callbacks`` or ``datamodules``.
        name: The file's name without ``.yaml``. Our own presets take precedence over the user's.

    Returns:
        ``class_path`` and ``init_args``; for data also ``recommended``, with ``eta`` and ``beta``.

    Raises:
        InputError: If there is no such preset or its file is not a valid preset.

    >>> preset("datamodules", "adult")["init_args"]
    {'related': ['age', 'relationship', 'marital-status']}
    """
    return _merged(kind, name, ())


def class_presets() -> dict[str, str]:
    """Return the class path of each of our data sets that is a class of its own.

    Such a class takes the defaults of its arguments from its preset.

    >>> class_presets()["adult"]
    'fairrf_lightning.datamodules.AdultDataModule'
    """
    paths = {
        file.stem: _read(file)["class_path"] for file in sorted(_our_folder("datamodules").glob("*.yaml"))
    }
    return {name: path for name, path in paths.items() if "." in path}


def recommended(made: type, init_args: Mapping[str, Any]) -> dict[str, float]:
    """Return ``eta`` and ``beta`` that the preset of a data set recommends; empty without such a preset.

    Args:
        made: Class of the data module.
        init_args: Its arguments; a table is recognised by its ``url`` or ``path``.
    """
    classes = {parent.__name__ for parent in made.__mro__}
    for name in preset_names("datamodules"):
        with suppress(InputError):  # a file of the user's that is not a preset
            found = preset("datamodules", name)
            same_file = _source(found.get("init_args") or {}) == _source(init_args)
            if "recommended" in found and same_file and found["class_path"].rpartition(".")[2] in classes:
                values: dict[str, float] = found["recommended"]
                return values
    return {}


def fit_callbacks() -> dict[str, dict[str, Any]]:
    """Return the callbacks that every ``fit`` has, by the option that configures them."""
    content: dict[str, dict[str, Any]] = _load(_our_folder("callbacks") / f"{_FIT}.yaml")
    return content


def import_class(class_path: str) -> Any:
    """Return the class that a path names, and import its module.

    >>> import_class("fairrf_lightning.FairRFModule").__name__
    'FairRFModule'
    """
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)


def class_path(class_type: type[Any]) -> str:
    """Return the path that :func:`import_class` finds a class by.

    >>> class_path(PurePath)
    'pathlib.PurePath'
    """
    return f"{class_type.__module__}.{class_type.__qualname__}"


def accepted_options(class_type: type[Any]) -> list[str]:
    """Return the arguments of a class, including those that it passes to its base by ``**kwargs``."""
    names: list[str] = []
    for owner in class_type.__mro__:
        parameters = inspect.signature(owner).parameters.values()
        names += [item.name for item in parameters if item.kind is not item.VAR_KEYWORD]
        if all(item.kind is not item.VAR_KEYWORD for item in parameters):
            break
    return list(dict.fromkeys(names))


def plain_values(value: Any) -> Any:
    """Return options as plain values, as a checkpoint keeps them.

    >>> plain_values({"path": PurePath("a.csv"), "split": (0.5, 0.5)})
    {'path': 'a.csv', 'split': [0.5, 0.5]}
    """
    import numpy as np  # noqa: PLC0415 - the names of presets are read without it

    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_values(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, PurePath) else value


def _merged(kind: PresetKind, name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    files = _files(kind)
    if name not in files:
        raise InputError(f"{kind}: there is no preset '{name}'")
    if name in seen:
        raise InputError(f"{files[name]}: class_path leads back to '{name}': {' -> '.join([*seen, name])}")
    own = _read(files[name])
    if own["class_path"] not in files:
        return own
    base = _merged(kind, own["class_path"], (*seen, name))
    options = {key: {**base.get(key, {}), **own.get(key, {})} for key in ("init_args", "recommended")}
    return base | {key: value for key, value in options.items() if value}


def _files(kind: PresetKind) -> dict[str, Path]:
    ours, users = (
        {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem != _FIT}
        for folder in (_our_folder(kind), Path(kind))
    )
    return ours | {name: path for name, path in users.items() if name not in ours}


def _our_folder(kind: PresetKind) -> Path:
    installed = Path(__file__).parent / kind
    return installed if installed.is_dir() else Path(__file__).parents[2] / kind


def _source(init_args: Mapping[str, Any]) -> Any:
    return init_args.get("url") or init_args.get("path")


def _read(path: Path) -> dict[str, Any]:
    content = _load(path)
    if not isinstance(content, dict) or not isinstance(content.get("class_path"), str):
        raise InputError(f"{path} is not a preset: it must have a class_path, and may have init_args.")
    return content


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not valid YAML: {reason}") from error
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
