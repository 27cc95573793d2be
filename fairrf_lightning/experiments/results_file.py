"""Results that are written as they come, so that an interrupted run resumes where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.experiments.identity import KEY
from fairrf_lightning.experiments.setting import FLOAT_COLUMNS, TEXT_COLUMNS
from fairrf_lightning.files import write_csv


class ResultsFile:
    """A table with one row for each model, kept in memory and, given a path, as CSV.

    Several processes may add to the same file: each addition reads the file again, under a lock.

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

    def has(self, key: str) -> bool:
        """Return whether the model's row is there."""
        return bool(len(self.frame)) and key in set(self.frame[KEY])

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
