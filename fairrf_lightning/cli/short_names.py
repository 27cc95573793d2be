"""Short names on the command line: ``--data adult`` for a class, ``--method NAME`` for several options.

Nothing here imports torch, so ``fit --help`` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
        "linear": "fairrf_lightning.backbones.Linear",
        "mlp": "fairrf_lightning.backbones.MLP",
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
_LISTS = {
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
                value,
                place
                if key in ("init_args", *COMMANDS_OF_LIGHTNING)
                else f"{place}.{key}".strip(".").removesuffix("+"),
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
    """
    groups: list[list[str]] = []
    for arg in args:
        if arg.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(arg)
    keys = [group[0].partition("=") for group in groups]
    return [
        (key, value or "".join(group[1:]), group) for (key, _, value), group in zip(keys, groups, strict=True)
    ]
