"""The identity of a result: everything that can change it, and a hash of that.

``grid``, ``sweep`` and ``reproduce`` reuse a result only if its identity is the one asked for, and
``report`` reads only results that differ in nothing but setting and seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.quiet import quiet_lightning

KEY = "key"
_PACKAGES = ["fairrf-lightning", "torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow"]
_PACKAGES += ["scikit-learn", "imbalanced-learn"]  # of KSMOTE, if installed
# Where the data are says nothing about them, their content does. The seed has a column of its own.
_NOT_OPTIONS = ("path", "data_dir", "seed")
# What all results of one experiment have in common: everything but setting and seed.
SHARED_COLUMNS = ["data", "data_options", "data_sha256", "versions", *(f.name for f in fields(Schedule))]
# A sweep trains many batches on one data module, which reads its table once.
_known: WeakKeyDictionary[TabularDataModule, dict[str, str]] = WeakKeyDictionary()


def data_identity(data: TabularDataModule) -> dict[str, str]:
    """Return what decides on all results of a data module, whatever the model.

    Returns:
        ``data`` (its name), ``data_options`` (class and all options, as JSON), ``data_sha256`` (of the
        table as read, not of its file: what a subclass reads is unknown, what it returns is not)
        and ``versions`` (of the packages that can change results, as JSON).
    """
    path = getattr(data, "path", None)
    if isinstance(path, Path) and path.is_dir():
        raise InputError(f"{path}: many models train on a table in memory; name a file, not a directory.")
    with quiet_lightning():  # the same notices come when the data are set up
        options = {name: value for name, value in data.options.items() if name not in _NOT_OPTIONS}
        options["class"] = f"{type(data).__module__}.{type(data).__qualname__}"
        text = json.dumps(options, sort_keys=True, default=_plain)
        if data not in _known or _known[data]["data_options"] != text:
            _known[data] = {
                "data": str(getattr(data, "name", type(data).__name__)),
                "data_options": text,
                "data_sha256": table_sha256(data.read()),
                "versions": json.dumps({package: _version(package) for package in _PACKAGES}),
            }
    return _known[data]


def model_identity(
    known: Mapping[str, str], data: TabularDataModule, setting: Setting, seed: int, schedule: Schedule
) -> dict[str, Any]:
    """Return the identity of one model as columns of its row of results; its hash, ``key``, comes last.

    Args:
        known: What :func:`data_identity` returned.
        data: The data module, which knows the related features.
        setting: The setting.
        seed: The seed.
        schedule: How long and how fast it is trained.
    """
    columns = {
        "data": known["data"],
        **setting.as_row(data),
        "seed": seed,
        **asdict(schedule),
        **{name: value for name, value in known.items() if name != "data"},
    }
    text = json.dumps(columns, sort_keys=True)
    return columns | {KEY: hashlib.sha256(text.encode()).hexdigest()[:16]}


def check_one_experiment(results: pd.DataFrame, folder: str | Path) -> None:
    """Raise unless results differ in nothing but setting and seed, so that means over seeds are means."""
    if missing := [name for name in SHARED_COLUMNS if name not in results]:
        raise InputError(
            f"{folder}: its results were written by an earlier version (no column {missing[0]}): "
            "train them again."
        )
    different = [name for name in SHARED_COLUMNS if len(set(results[name])) > 1]
    if different:
        raise InputError(
            f"{folder}: its results are of several experiments, which differ in {', '.join(different)}.\n"
            "The report that grid wrote is of the last one. For one report each, give each its own --out."
        )


def table_sha256(table: pd.DataFrame) -> str:
    """Return a checksum of names, types and values of a table, in order.

    >>> one, other = pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [2, 1]})
    >>> table_sha256(one) == table_sha256(one.copy()), table_sha256(one) == table_sha256(other)
    (True, False)
    """
    digest = hashlib.sha256()
    for name, column in table.items():
        is_category = isinstance(column.dtype, pd.CategoricalDtype)
        # A category without rows is an input of the model all the same.
        categories = [str(value) for value in column.cat.categories] if is_category else []
        digest.update(json.dumps([str(name), str(column.dtype), categories]).encode())
        digest.update(pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
