"""Results of many models: one row per model, identified by everything that can change it.

``grid``, ``sweep`` and ``reproduce`` reuse a row only if its identity is the requested one, and ``report``
reads only results that differ in nothing but setting and seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
from filelock import FileLock

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.experiments.setting import FLOAT_COLUMNS, TEXT_COLUMNS, Schedule, Setting
from fairrf_lightning.files import write_csv
from fairrf_lightning.messages import quiet_lightning

KEY = "key"
_PACKAGES = ["fairrf-lightning", "torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow"]
_PACKAGES += ["scikit-learn", "imbalanced-learn"]  # for KSMOTE, if installed
# The content of a table identifies it, not its place. The seed has a column of its own.
_NOT_OPTIONS = ("path", "url", "sha256", "data_dir", "seed")
# Shared by all results of one experiment: everything but setting and seed.
SHARED_COLUMNS = ["data", "data_options", "data_sha256", "versions", *(f.name for f in fields(Schedule))]
# A sweep trains many batches on one data module, which reads its table once.
_known: WeakKeyDictionary[TabularDataModule, dict[str, str]] = WeakKeyDictionary()


def data_identity(data: TabularDataModule) -> dict[str, str]:
    """Return the identity of the data, shared by the results of all models.

    Returns:
        ``data`` (its name), ``data_options`` (class and all options, as JSON), ``data_sha256`` (of the
        table as read, so that a subclass may read anything) and ``versions`` (of the packages that can
        change results, as JSON).
    """
    if data.is_streamed:
        path = getattr(data, "path", data)
        raise InputError(f"{path}: many models train on a table in memory; name a file, not a directory.")
    with quiet_lightning():  # the same notices come when the data are set up
        options = {name: value for name, value in data.options.items() if name not in _NOT_OPTIONS}
        options["class"] = f"{type(data).__module__}.{type(data).__qualname__}"
        text = json.dumps(options, sort_keys=True, default=_json_value)
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
    """Return the identity of one model as columns of its row of results; its hash, ``key``, comes last."""
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
    """Raise unless results differ in nothing but setting and seed, as means over seeds require."""
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
    """Return a checksum of the names, types and values of a table, in order.

    >>> one, other = pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [2, 1]})
    >>> table_sha256(one) == table_sha256(one.copy()), table_sha256(one) == table_sha256(other)
    (True, False)
    """
    digest = hashlib.sha256()
    for name, column in table.items():
        is_category = isinstance(column.dtype, pd.CategoricalDtype)
        # A category without rows is still an input of the model.
        categories = [str(value) for value in column.cat.categories] if is_category else []
        digest.update(json.dumps([str(name), str(column.dtype), categories]).encode())
        digest.update(pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _json_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


class ResultsFile:
    """A table with one row per model, kept in memory and, given a path, as CSV.

    Rows are written as they come, so an interrupted run resumes from them. Several processes may add to
    the same file: each addition reads the file again, under a lock.

    Args:
        path: The CSV file; rows that are already in it are kept. ``None``: memory only.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        # One lock, which can be taken twice: Ctrl-C may end an addition before the lock is released.
        self._lock = None if self.path is None else FileLock(self.path.with_name(f".{self.path.name}.lock"))
        self.frame = self._read()

    def check_writable(self) -> None:
        """Raise if rows could not be written, before they are trained."""
        if self.path is not None:
            with writing_to(self.path.parent):
                check_writable(self.path.parent)

    def keys(self) -> set[str]:
        """Return the keys of all rows."""
        return set(self.frame[KEY]) if len(self.frame) else set()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to those that are in the file by now, and replace the file as a whole."""
        new = pd.DataFrame([dict(row) for row in rows])
        if self.path is None or self._lock is None:
            self.frame = _merged(self.frame, new)
            return
        with writing_to(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:
                merged = _merged(self._read(), new)
                write_csv(merged, self.path)
            self.frame = self._read()  # as a later run will read it

    def select(self, keys: Sequence[str]) -> pd.DataFrame:
        """Return the rows with these keys, in their order."""
        rows = self.frame.set_index(KEY).loc[list(keys)]
        return rows.copy().reset_index()  # a copy is not fragmented

    def _read(self) -> pd.DataFrame:
        if self.path is None or not self.path.is_file():
            return pd.DataFrame()
        try:
            frame = pd.read_csv(self.path, dtype=dict.fromkeys((*TEXT_COLUMNS, *FLOAT_COLUMNS), str))
        except (OSError, UnicodeDecodeError, pd.errors.EmptyDataError, pd.errors.ParserError) as error:
            raise InputError(f"{self.path} cannot be read ({error}): move it or name another one.") from error
        if KEY not in frame:
            raise InputError(f"{self.path} is no results file of this command: name another one.")
        # Some parsers are off by the last bit, and an eta that is off by a bit would be another setting.
        exact = {name: frame[name].map(float) for name in FLOAT_COLUMNS if name in frame}
        return frame.fillna({name: "" for name in TEXT_COLUMNS if name in frame}).assign(**exact)


def _merged(known: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    both = pd.concat([known, new], ignore_index=True) if len(known) else new
    return both.drop_duplicates(KEY, ignore_index=True)
