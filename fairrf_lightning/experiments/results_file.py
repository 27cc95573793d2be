"""Results that are written as they come, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.setting import Schedule, Setting

_KEY = "key"
_DATA_OPTIONS = ("split", "batch_size", "groups", "include_sensitive", "remove_related", "ksmote")


def identity(data: TabularDataModule, setting: Setting, seed: int, schedule: Schedule) -> dict[str, Any]:
    """Return what decides on the figures of a model; its hash, ``key``, comes last."""
    options = {name: getattr(data, name) for name in _DATA_OPTIONS}
    options |= {name: getattr(data, name) for name in data.table_options}
    columns = {
        "data": getattr(data, "name", type(data).__name__),
        **setting.as_row(data),
        "seed": seed,
        **asdict(schedule),
        "data_options": json.dumps(options, sort_keys=True, default=str),
        "version": version("fairrf-lightning"),
    }
    text = json.dumps(columns, sort_keys=True)
    return columns | {_KEY: hashlib.sha256(text.encode()).hexdigest()[:16]}


class ResultsFile:
    """A table with one row for each model, kept in memory and, given a path, as CSV.

    Args:
        path: The CSV file; rows that are already in it are kept. ``None``: memory only.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.frame = pd.DataFrame()
        if self.path is not None and self.path.is_file():
            self.frame = pd.read_csv(self.path, dtype={"removed": str}).fillna({"removed": ""})
            if _KEY not in self.frame:
                raise InputError(f"{self.path} is no results file of this command: name another one.")

    def has(self, key: str) -> bool:
        """Return whether the model's row is there."""
        return bool(len(self.frame)) and key in set(self.frame[_KEY])

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows and write the file anew, so that a reader never sees half of it."""
        new = pd.DataFrame([dict(row) for row in rows])
        self.frame = pd.concat([self.frame, new], ignore_index=True) if len(self.frame) else new
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(self.path.name + ".part")
        self.frame.to_csv(unfinished, index=False)
        unfinished.replace(self.path)

    def select(self, keys: Sequence[str]) -> pd.DataFrame:
        """Return the rows with these keys, in their order."""
        rows = self.frame.drop_duplicates(_KEY, keep="last").set_index(_KEY).loc[list(keys)]
        return rows.copy().reset_index()  # a copy is not fragmented
