"""Presets by name: YAML files of data sets and callbacks, ours and the user's.

The files live in the folders ``datamodules/`` and ``callbacks/`` at the top of the repository. A wheel holds
them next to this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
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

    A preset whose ``class_path`` is the name of another one has its options too, unless it sets them
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
