"""Short names on the command line: ``--data adult`` for a class, ``--method NAME`` for several options.

Nothing here imports torch, so ``fit --help`` answers at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.presets import PresetKind, class_presets, preset, preset_names

MODEL_CLASSES = {
    "fairrf": "fairrf_lightning.FairRFModule",
    "arl": "fairrf_lightning.methods.ARLModule",
}
SHORT_NAMES: dict[str, dict[str, str]] = {
    "data": class_presets(),
    "model": MODEL_CLASSES,
    "model.backbone": {
        "mlp": "fairrf_lightning.backbones.MLP",
        "linear": "fairrf_lightning.backbones.Linear",
        "svm": "fairrf_lightning.backbones.LinearSVM",
    },
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
LIST_OPTIONS = {
    f"--data.{name}" for name in ("related", "groups", "categorical", "numeric", "drop", "missing_values")
}
COMMANDS_OF_LIGHTNING = ("fit", "validate", "test", "predict")
_SAME_PLACE = ("init_args", *COMMANDS_OF_LIGHTNING)
_TABLE_ENDINGS = (".csv", ".gz", ".parquet", ".tsv", ".txt", ".xls", ".xlsx")
METHODS = {name: [f"--model={name}"] for name in MODEL_CLASSES} | {
    "vanilla": ["--model.eta=0"],
    "constrain_s": ["--data.expose_sensitive=true"],
    "remove_r": ["--data.remove_related=true", "--model.eta=0"],
    "ksmote": ["--data.ksmote={}"],
}
METHOD_HELP = "--method NAME stands for these options: " + "; ".join(
    f"{name}: {' '.join(options)}" for name, options in METHODS.items()
)


def expand_args(args: list[str]) -> Iterator[str]:
    """Yield the arguments with ``--data adult`` and ``--data=adult`` spelt out, and lists in brackets."""
    for key, _, typed in split_options(args):
        expand: Callable[[str], str]
        if key in LIST_OPTIONS:
            expand = as_list
        elif place := _place(key):
            expand = partial(_as_argument, place)
        elif place := _place(key.removesuffix(".help")):
            expand = partial(_class_of, place)
        else:
            yield from typed
            continue
        option, equals, value = typed[0].partition("=")
        yield f"{option}={expand(value)}" if equals else option
        rest = 1 if equals else 2
        yield from map(expand, typed[1:rest])
        yield from typed[rest:]


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
    if isinstance(config, str) and place in SHORT_NAMES:
        found = _spelt_out(place, config)
        return {"class_path": found} if isinstance(found, str) and found != config else found
    if not isinstance(config, dict):
        return config
    expanded = {}
    for key, value in _with_preset(config, place).items():
        if key == "class_path" and place in SHORT_NAMES and isinstance(value, str):
            expanded[key] = _class_of(place, value)
        else:
            inner = place if key in _SAME_PLACE else f"{place}.{key}".strip(".").removesuffix("+")
            expanded[key] = expand_config(value, inner)
    return expanded


def _with_preset(config: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a config whose ``class_path`` is the name of a preset with the options of that preset."""
    name = config.get("class_path")
    if place not in _PRESETS or name in SHORT_NAMES[place] or name not in preset_names(_PRESETS[place]):
        return config
    options = preset(_PRESETS[place], name).get("init_args", {}) | (config.get("init_args") or {})
    return config | {"init_args": options}


def _class_of(place: str, name: str) -> str:
    """Return the class path that a short name of an option stands for; other names as they are."""
    names = SHORT_NAMES[place]
    if name in names:
        return names[name]
    presets = preset_names(_PRESETS[place]) if place in _PRESETS else []
    if name in presets:
        return _class_of(place, preset(_PRESETS[place], name)["class_path"])
    known = dict.fromkeys([*names, *presets])
    # Other names with capitals may be classes of the user.
    is_short = name.islower() or (place == "data" and name.lower() in known)
    if name.isidentifier() and is_short and name not in ("true", "false", "null", "none"):
        near = name.lower() if name.lower() in known else name
        raise InputError(f"--{place} {name}: no such name; {did_you_mean(near, known)}")
    # The parser would read the file as a config, and print all of its rows in the error.
    if place == "data" and name.lower().endswith(_TABLE_ENDINGS):
        raise InputError(f"--data {name}: this is a file; name it by --data table --data.path {name}")
    return name


def _spelt_out(place: str, name: str) -> str | dict[str, Any]:
    """Return the class path that a short name stands for, with its arguments if it has any."""
    path = _class_of(place, name)
    if name in SHORT_NAMES[place]:
        init_args = _NEEDED_ARGS.get(path)
    elif place in _PRESETS and name in preset_names(_PRESETS[place]):
        init_args = preset(_PRESETS[place], name).get("init_args", {})
    else:
        init_args = None
    return path if init_args is None else {"class_path": path, "init_args": init_args}


def _as_argument(place: str, name: str) -> str:
    found = _spelt_out(place, name)
    return found if isinstance(found, str) else json.dumps(found)


def _place(arg: str) -> str | None:
    place = arg.removeprefix("--").removesuffix("+")
    return place if arg.startswith("--") and place in SHORT_NAMES else None


def expand_method(args: list[str]) -> list[str]:
    """Return the arguments with ``--method NAME`` spelt out.

    >>> expand_method(["fit", "--method", "vanilla", "--trainer.max_epochs=1", "--data", "adult"])
    ['fit', '--data', 'adult', '--model.eta=0', '--trainer.max_epochs=1']
    """
    options = split_options(args)
    names = [value for key, value, _ in options if key == "--method"]
    if not names:
        return args
    added = METHODS.get(names[-1])
    if added is None:
        raise InputError(f"--method {names[-1]}: no such name; {did_you_mean(names[-1], METHODS)}")
    given = {key for key, *_ in options}
    for option in added:
        if (key := option.partition("=")[0]) in given:
            raise InputError(f"--method {names[-1]} sets {option}: leave out one of --method and {key}.")
    first: list[str] = []  # the classes decide which other options there are
    rest = list(added)
    for key, _, typed in options:
        if not key.startswith("--") or key in ("--config", "--data", "--model"):
            first += typed
        elif key != "--method":
            rest += typed
    return first + rest


def split_options(args: list[str]) -> list[tuple[str, str, list[str]]]:
    """Return each option with its value and its arguments as they were typed; other arguments come first.

    >>> split_options(["fit", "--data", "adult", "--model.eta=0"])
    [('fit', '', ['fit']), ('--data', 'adult', ['--data', 'adult']), ('--model.eta', '0', ['--model.eta=0'])]
    >>> [key for key, _, _ in split_options(["--ckpt_path", "best.ckpt", "-c", "my.yaml"])]
    ['--ckpt_path', '-c']
    """
    groups: list[list[str]] = []
    for arg in args:
        if re.match(r"--|-[a-zA-Z]", arg) or not groups:
            groups.append([])
        groups[-1].append(arg)
    keys = [group[0].partition("=") for group in groups]
    return [
        (key, value or " ".join(group[1:]), group)
        for (key, _, value), group in zip(keys, groups, strict=True)
    ]
