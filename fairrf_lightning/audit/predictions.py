"""Predictions of any model, streamed from a CSV or Parquet file into counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fairrf_lightning.audit.cells import Batch, CellCounts, Floats, Ints
from fairrf_lightning.datamodules.columns import MISSING_VALUES, check_column, value_text
from fairrf_lightning.datamodules.files import first_line
from fairrf_lightning.errors import InputError

_BATCH_ROWS = 1 << 18
_BLOCK_BYTES = 1 << 24
_MOST_COMBINATIONS = 1 << 20


@dataclass(frozen=True)
class PredictionsFile:
    """A file with one line per row.

    Args:
        path: CSV file with a line of column names, or Parquet file.
        target: Column of the true class, 0 or 1 (or false and true); ``None`` without true labels.
        groups: Columns of the sensitive attributes; an empty cell is an unknown group.
        prob: Column of the probability of the positive class, or ``None``.
        decision: Column of the decision, 0 or 1; by default ``prob >= threshold``.
        against: Column of the probability, or decision if there is no ``prob``, of another model.
        threshold: Probability from which on a decision is positive.
    """

    path: Path
    target: str | None
    groups: tuple[str, ...]
    prob: str | None = None
    decision: str | None = None
    against: str | None = None
    threshold: float = 0.5

    def count(self) -> CellCounts:
        """Return the counts of all rows, read once."""
        cells = CellCounts()
        rows = 0
        for table in self._read():
            with _row_named(rows):
                cells.update(self._batch(table, cells))
            rows += table.num_rows
        if not rows:
            raise InputError(f"{self.path} has no rows.")
        return cells

    @property
    def _columns(self) -> list[str]:
        named = [self.target, *self.groups, self.prob, self.decision, self.against]
        return list(dict.fromkeys(name for name in named if name is not None))

    def _read(self) -> Iterator[Any]:
        with _explained(self.path):
            yield from self._read_parquet() if _is_parquet(self.path) else self._read_csv()

    def _read_parquet(self) -> Iterator[Any]:
        with pq.ParquetFile(self.path) as file:
            self._check(file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH_ROWS, columns=self._columns, use_threads=False):
                yield pa.Table.from_batches([batch])

    def _read_csv(self) -> Iterator[Any]:
        text = {name: pa.string() for name in (*self.groups, self.target) if name is not None}
        text |= {name: pa.float64() for name in (self.prob, self.against) if name is not None}
        convert = arrow_csv.ConvertOptions(
            column_types=text, null_values=list(MISSING_VALUES), strings_can_be_null=True
        )
        with arrow_csv.open_csv(self.path, _csv_options(), convert_options=convert) as reader:
            self._check(reader.schema.names)
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def _check(self, columns: Sequence[str]) -> None:
        if self.prob is None and self.decision is None:
            raise InputError("predictions need a column of probabilities (--prob) or decisions (--decision).")
        if len(columns) == 1 and (found := [mark for mark in ";\t|" if mark in columns[0]]):
            raise InputError(
                f"--predictions {self.path}: its columns are separated by {found[0]!r}; write it with commas."
            )
        for name in self._columns:
            check_column(f"--predictions {self.path}", name, columns)
            if list(columns).count(name) > 1:
                raise InputError(
                    f"--predictions {self.path}: {list(columns).count(name)} columns are named '{name}': "
                    "rename or remove all but one."
                )

    def _batch(self, table: Any, cells: CellCounts) -> Batch:
        target = None if self.target is None else _labels(self.target, table.column(self.target))
        codes = _cell_numbers([table.column(name) for name in self.groups], cells)
        probs = [_probabilities(name, table.column(name)) for name in (self.prob, self._second) if name]
        if self.decision is not None:
            decisions = [_binary(self.decision, table.column(self.decision))]
        else:
            decisions = [(probs[0] >= self.threshold).astype(np.int64)]
        if self.against is not None and self.prob is None:
            decisions.append(_binary(self.against, table.column(self.against)))
        elif self.against is not None:
            decisions.append((probs[1] >= self.threshold).astype(np.int64))
        return Batch(target, codes, np.stack(decisions), np.stack(probs) if probs else None)

    @property
    def _second(self) -> str | None:
        return self.against if self.prob is not None else None


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with _explained(path):
        if _is_parquet(path):
            return list(pq.read_schema(path).names)
        with arrow_csv.open_csv(path, _csv_options()) as reader:
            return list(reader.schema.names)


def _csv_options() -> Any:
    return arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise InputError(f"--predictions {path}: there is no such file.")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--predictions {path} cannot be read: {first_line(error)}{_advice(error)}"
        ) from error


def _cell_numbers(columns: list[Any], cells: CellCounts) -> Ints:
    """Return the number of the cell of each row; only distinct combinations pass through Python."""
    joint = np.zeros(len(columns[0]), np.int64)
    values = []
    for column in columns:
        encoded = _encoded(column)
        texts = [value_text(value) for value in encoded.dictionary.to_pylist()]
        values.append([None if text in MISSING_VALUES else text for text in texts])
        joint = joint * len(texts) + encoded.indices.to_numpy(zero_copy_only=False)
    sizes = [len(texts) for texts in values]
    if math.prod(sizes) > _MOST_COMBINATIONS:
        raise InputError(f"the columns of groups have {sizes} different values: too many to be groups.")
    lookup = np.zeros(math.prod(sizes), np.int64)
    for code in np.flatnonzero(np.bincount(joint, minlength=len(lookup))):
        places = np.unravel_index(code, sizes)
        lookup[code] = cells.number(tuple(v[p] for v, p in zip(values, places, strict=True)))
    return lookup[joint]


def _encoded(column: Any) -> Any:
    """Return a column as one array of codes of its distinct values, missing ones among them."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _binary(name: str, column: Any) -> Ints:
    encoded = _encoded(column)
    codes: list[int] = []
    for value in encoded.dictionary.to_pylist():
        text = (value_text(value) or "").lower()
        if text not in ("0", "1", "false", "true", "0.0", "1.0"):
            row = int(np.argmax(encoded.indices.to_numpy(zero_copy_only=False) == len(codes)))
            raise _WrongCell(row, f"column '{name}' has {_words(value)}", "expected 0 or 1 in every row.")
        codes.append(int(text in ("1", "true", "1.0")))
    numbers: Ints = np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _labels(name: str, column: Any) -> Ints:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        advice = "expected 0 or 1 in every row; --target '' audits without true labels."
        raise _WrongCell(row, f"column '{name}' has an empty cell", advice)
    return _binary(name, column)


def _probabilities(name: str, column: Any) -> Floats:
    values: Floats = column.cast(pa.float64()).to_numpy()
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if len(wrong):
        value = float(values[wrong[0]])
        found = f"column '{name}' has {_words(None if np.isnan(value) else value)}"
        raise _WrongCell(int(wrong[0]), found, "expected a probability from 0 to 1 in every row.")
    return values


class _WrongCell(Exception):  # noqa: N818 - never leaves this file
    """A value that cannot be, and its row within the batch."""


@contextmanager
def _row_named(rows_before: int) -> Iterator[None]:
    try:
        yield
    except _WrongCell as error:
        row, found, expected = error.args
        raise InputError(f"{found} in data row {rows_before + row + 1:,}: {expected}") from None


def _advice(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return "; save the file as UTF-8 (it may be cp1252, as Windows writes it)."
    if "conversion error to double" in text:
        return "; expected numbers such as 0.25 in the columns of probabilities."
    return ""


def _words(value: Any) -> str:
    return "an empty cell" if value is None else f"the value {value!r}"
