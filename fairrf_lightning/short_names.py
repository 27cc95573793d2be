"""Short names on the command line: ``--data adult`` for the class path of its data module."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.cli import LightningArgumentParser

from fairrf_lightning.errors import InputError, did_you_mean

SHORT_NAMES = {
    "data": {
        "adult": "fairrf_lightning.datamodules.AdultDataModule",
        "compas": "fairrf_lightning.datamodules.COMPASDataModule",
        "lsac": "fairrf_lightning.datamodules.LSACDataModule",
        "synthetic": "fairrf_lightning.datamodules.SyntheticDataModule",
    },
    "model": {"fairrf": "fairrf_lightning.FairRFModule"},
    "model.backbone": {
        "mlp": "fairrf_lightning.backbones.MLP",
        "linear": "fairrf_lightning.backbones.Linear",
        "svm": "fairrf_lightning.backbones.LinearSVM",
    },
    "trainer.logger": {
        "csv": "lightning.pytorch.loggers.CSVLogger",
        "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
        "wandb": "lightning.pytorch.loggers.WandbLogger",
    },
}
PRESETS = Path("datamodules")
_SAME_PLACE = {"init_args", "fit", "validate", "test", "predict"}


class ShortNameParser(LightningArgumentParser):
    """Expands short names before jsonargparse sees them, so saved configs hold full class paths."""

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if args is None else [str(arg) for arg in args]
        return super().parse_args(list(expand_args(given)), *rest, **kwargs)

    def parse_object(self, cfg_obj: Any, *rest: Any, **kwargs: Any) -> Any:
        return super().parse_object(expand_config(cfg_obj), *rest, **kwargs)

    def parse_string(self, *args: Any, **kwargs: Any) -> Any:
        # The text's own name differs between versions of jsonargparse.
        texts = {name: value for name, value in kwargs.items() if name in ("content", "cfg_str")}
        expanded = {name: _expand_text(text) for name, text in texts.items()}
        args = (_expand_text(args[0]), *args[1:]) if args else args
        return super().parse_string(*args, **kwargs | expanded)


def _expand_text(text: str) -> str:
    return yaml.safe_dump(expand_config(yaml.safe_load(text)), sort_keys=False)


def expand_args(args: list[str]) -> Iterable[str]:
    """Yield the arguments with ``--data adult`` and ``--data=adult`` spelt out."""
    option = None
    for arg in args:
        key, equals, value = arg.partition("=")
        if option is not None:
            yield _expand(option, arg)
            option = None
        elif equals and _option(key) is not None:
            yield f"{key}={_expand(str(_option(key)), value)}"
        else:
            option = _option(arg)
            yield arg


def expand_config(config: Any, place: str = "") -> Any:
    """Return a config with short names spelt out at the same places as on the command line."""
    if not isinstance(config, dict):
        expanded = _expand(place, config) if isinstance(config, str) and place in SHORT_NAMES else None
        return config if expanded in (None, config) else _class_spec(str(expanded))
    result = {}
    for key, value in config.items():
        if key == "class_path" and place in SHORT_NAMES:
            result[key] = _expand(place, value)
        else:
            result[key] = expand_config(value, place if key in _SAME_PLACE else f"{place}.{key}".lstrip("."))
    return result


def _class_spec(expanded: str) -> Any:
    return json.loads(expanded) if expanded.startswith("{") else {"class_path": expanded}


def _option(arg: str) -> str | None:
    key = arg.removeprefix("--").removesuffix(".help")
    return key if arg.startswith("--") and key in SHORT_NAMES else None


def _expand(option: str, value: str) -> str:
    names = SHORT_NAMES[option]
    if value in names:
        return names[value]
    preset = PRESETS / f"{value}.yaml"
    if option == "data" and value.isidentifier() and preset.is_file():
        return json.dumps(expand_config({"data": yaml.safe_load(preset.read_text("utf-8"))})["data"])
    if value.isidentifier() and value.islower() and value not in ("true", "false", "null", "none"):
        raise InputError(f"--{option} {value}: no such name; {did_you_mean(value, names)}")
    return value
