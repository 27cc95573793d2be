"""Short names on the command line: ``--data adult`` for the class path of its data module."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fairrf_lightning.backbones import BACKBONES
from fairrf_lightning.cli.errors import unknown_option
from fairrf_lightning.cli.methods import MODEL_CLASSES, expand_method
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.presets import PresetKind, class_presets, preset, preset_names

SHORT_NAMES: dict[str, dict[str, str]] = {
    "data": class_presets(),
    "model": MODEL_CLASSES,
    "model.backbone": {name: f"{kind.__module__}.{kind.__qualname__}" for name, kind in BACKBONES.items()},
    "trainer.logger": {
        "csv": "lightning.pytorch.loggers.CSVLogger",
        "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
        "wandb": "fairrf_lightning.tracking.WandbLogger",
    },
    "trainer.callbacks": {},
}
_PRESETS: dict[str, PresetKind] = {"data": "datamodules", "trainer.callbacks": "callbacks"}
_NEEDED_ARGS = {SHORT_NAMES["trainer.logger"][name]: {"save_dir": ""} for name in ("csv", "tensorboard")}
# Options that are lists of names; the brackets may be left out.
_LISTS = {
    f"--data.{name}" for name in ("related", "groups", "categorical", "numeric", "drop", "missing_values")
}
_SAME_PLACE = {"init_args", "fit", "validate", "test", "predict"}
_TABLE_ENDINGS = (".csv", ".gz", ".parquet", ".tsv", ".txt", ".xls", ".xlsx")


class ShortNameParser(LightningArgumentParser):
    """Expands short names before jsonargparse sees them, so saved configs hold full class paths."""

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if args is None else [str(arg) for arg in args]
        try:
            return super().parse_args(list(expand_args(expand_method(given))), *rest, **kwargs)
        except ArgumentError as error:
            if option := re.search(r"(?:unrecognized arguments|ambiguous option): (--[^\s=]+)", str(error)):
                raise self._unknown(option[1]) from error
            raise

    def _unknown(self, option: str) -> InputError:
        commands = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        parsers = [self, *(parser for choices in commands for parser in choices.values())]
        known = {action.dest for parser in parsers for action in parser._actions}  # noqa: SLF001
        command = self.prog.split()[-1]  # "train.py [options] fit"
        is_lightning = commands or command in _SAME_PLACE
        see = f"{'fit' if commands else command} --help{'-all' if is_lightning else ''}"
        return unknown_option(option, sorted(known), see)

    def parse_object(self, cfg_obj: Any, *rest: Any, **kwargs: Any) -> Any:
        self._check_empty(cfg_obj)
        return super().parse_object(expand_config(cfg_obj), *rest, **kwargs)

    def parse_string(self, *args: Any, **kwargs: Any) -> Any:
        # The text's own name differs between versions of jsonargparse.
        texts = {name: value for name, value in kwargs.items() if name in ("content", "cfg_str")}
        expanded = {name: _expand_text(text) for name, text in texts.items()}
        args = (_expand_text(args[0]), *args[1:]) if args else args
        for text in [*expanded.values(), *args[:1]]:
            self._check_empty(yaml.safe_load(text))
        return super().parse_string(*args, **kwargs | expanded)

    def _check_empty(self, config: Any, place: str = "") -> None:
        """Raise if an option that does not exist has an empty value: jsonargparse would drop it."""
        known = [action.dest for action in self._actions if not action.dest.endswith(".help")]
        commands = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        for name, value in _items(config):
            option = f"{place}{name}".removesuffix("+")
            if found := next((parsers[option] for parsers in commands if option in parsers), None):
                found._check_empty(value)  # noqa: SLF001 - a parser of this class
            elif any(other.startswith(f"{option}.") for other in known):
                self._check_empty(value, f"{option}.")
            elif option not in known and _is_empty(value):
                self.error(f"Option '{option}' is not accepted")


def _items(config: Any) -> list[tuple[str, Any]]:
    values = vars(config) if isinstance(config, Namespace) else config
    return [(str(name), value) for name, value in values.items()] if isinstance(values, dict) else []


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | Namespace) and all(_is_empty(item) for _, item in _items(value))


def _expand_text(text: str) -> str:
    return yaml.safe_dump(expand_config(_read_yaml(text, "the config")), sort_keys=False)


def _read_yaml(text: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name} is not valid YAML: {reason}") from error


def expand_args(args: list[str]) -> Iterable[str]:
    """Yield the arguments with ``--data adult`` and ``--data=adult`` spelt out."""
    place, previous = None, ""
    for arg in args:
        key, equals, value = arg.partition("=")
        if place is not None:
            yield _as_argument(resolve(place, arg))
            place = None
        elif equals and (place_of_key := _place(key)):
            yield f"{key}={_as_argument(resolve(place_of_key, value))}"
        elif equals and key in _LISTS:
            yield f"{key}={as_list(value)}"
        elif previous in _LISTS:
            yield as_list(arg)
        elif not equals and arg.endswith(".help") and _place(arg.removesuffix(".help")):
            yield arg
            place = arg.removeprefix("--")
        else:
            place = _place(arg)
            yield arg
        previous = arg


def as_list(text: str) -> str:
    """Return a list that is written ``a,b`` in brackets, for YAML; a list with brackets stays as it is.

    >>> as_list("age, housing"), as_list("[age]"), as_list("all")
    ('["age", "housing"]', '[age]', 'all')
    """
    if text.startswith("[") or text in ("null", "all"):
        return text
    return json.dumps([item.strip() for item in text.split(",") if item.strip()], ensure_ascii=False)


def expand_config(config: Any, place: str = "") -> Any:
    """Return a config with short names spelt out at the same places as on the command line."""
    if isinstance(config, list):
        return [expand_config(item, place) for item in config]
    if isinstance(config, dict):
        return {
            key: resolve(f"{place}.help", value)
            if key == "class_path" and place in SHORT_NAMES and isinstance(value, str)
            else expand_config(
                value, place if key in _SAME_PLACE else f"{place}.{key}".strip(".").removesuffix("+")
            )
            for key, value in _with_preset(config, place).items()
        }
    if isinstance(config, str) and place in SHORT_NAMES:
        found = resolve(place, config)
        return {"class_path": found} if isinstance(found, str) and found != config else found
    return config


def _with_preset(config: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a config whose ``class_path`` is the name of a preset with the options of that preset."""
    name = config.get("class_path")
    if place not in _PRESETS or name in SHORT_NAMES[place] or name not in preset_names(_PRESETS[place]):
        return config
    options = preset(_PRESETS[place], name).get("init_args", {}) | (config.get("init_args") or {})
    return config | {"init_args": options}


def resolve(place: str, name: str) -> Any:
    """Return the class path that a short name stands for, or a dict of it and its arguments.

    Args:
        place: The option, such as ``"data"``; with ``".help"`` behind it, only a class path will do.
        name: A short name; anything else is returned as it is.
    """
    option = place.removesuffix(".help")
    names = SHORT_NAMES[option]
    if name in names:
        path = names[name]
        bare = place != option or path not in _NEEDED_ARGS
        return path if bare else {"class_path": path, "init_args": _NEEDED_ARGS[path]}
    presets = preset_names(_PRESETS[option]) if option in _PRESETS else []
    if name in presets:
        return _from_preset(place, name)
    if name.isidentifier() and name.islower() and name not in ("true", "false", "null", "none"):
        raise InputError(
            f"--{option} {name}: no such name; {did_you_mean(name, dict.fromkeys([*names, *presets]))}"
        )
    # The parser would read the file as a config, and print all of its rows in the error.
    if option == "data" and name.lower().endswith(_TABLE_ENDINGS):
        raise InputError(f"--data {name}: this is a file; name it by --data table --data.path {name}")
    return name


def _from_preset(place: str, name: str) -> Any:
    option = place.removesuffix(".help")
    found = preset(_PRESETS[option], name)
    class_path = resolve(f"{option}.help", found["class_path"])
    return (
        class_path if place != option else {"class_path": class_path, "init_args": found.get("init_args", {})}
    )


def _place(arg: str) -> str | None:
    place = arg.removeprefix("--").removesuffix("+")
    return place if arg.startswith("--") and place in SHORT_NAMES else None


def _as_argument(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found)
