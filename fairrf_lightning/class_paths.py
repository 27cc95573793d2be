"""Classes by their path, as configs name them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any

import numpy as np


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
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_values(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, PurePath) else value
