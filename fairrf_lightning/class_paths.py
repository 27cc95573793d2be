"""Classes by their path, as configs name them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_class(class_path: str) -> Any:
    """Return the class that a path names, and import its module.

    >>> import_class("fairrf_lightning.FairRFModule").__name__
    'FairRFModule'
    """
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)
