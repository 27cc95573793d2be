"""Reads predictions of any model from a CSV or Parquet file, in batches and constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fairrf_lightning.audit.scores import Floats, Ints, Scores, no_threshold
from fairrf_lightning.datamodules.columns import MISSING_VALUES, check_column, value_text
from fairrf_lightning.datamodules.files import CsvFile
from fairrf_lightning.errors import InputError, first_line

_BATCH_ROWS = 1 << 18
_BLOCK_BYTES = 1 << 24
_MAX_COMBINATIONS = 1 << 20
_TARGET = "target"
_DECISION = "decision"  # `predict` writes it, next to probabilities that agree with it
PROBABILITIES = ("prob", "probability")  # `predict` writes the second


def read_predictions(
    path: Path,
    groups: Sequence[str],
    *,
    target: str | None = None,
    prob: str | None = None,
    decision: str | None = None,
    against: str | None = None,
    threshold: float = 0.5,
) -> Scores:
    """Count the predictions in a file with one line per row, read once.

    Args:
        path: CSV file with a line of column names, or Parquet file.
        groups: Columns of the sensitive attributes; an empty cell is an unknown group.
        target: Column of the true class, 0 or 1 (or false and true), or from 0 of more than two classes. By
            default ``target`` if there is one; an empty name reads no labels.
        prob: Column of the probability of the positive class. By default ``prob`` or ``probability``, unless
            ``decision`` is given. For more than two classes, the columns ``<prob>_0``, ``<prob>_1`` and so
            on.
        decision: Column of the decision; by default ``prob >= threshold``, or the most probable class.
        against: Column of the probability, or of the decision without ``prob``, of another model.
        threshold: Decision threshold.

    Raises:
        InputError: If the file cannot be read, or a column is missing or has wrong values.
    """
    columns = column_names(path)
    if not groups:
        raise InputError("--groups is not given: name the sensitive columns of the file, such as race,sex.")
    if target is None:
        target = _TARGET if _TARGET in columns else ""
    if (target or _TARGET) in groups:
        raise InputError(
            f"--groups {target or _TARGET}: this column is the true class, not a group of people; name a "
            "sensitive column, or the true class by --target."
        )
    if prob is None and decision is None:
        found = (name for name in PROBABILITIES if name in columns or f"{name}_0" in columns)
        prob = next(found, None)
    num_classes = 2 if prob is None or prob in columns else _num_classes(path, prob, columns)
    if num_classes > 2 and threshold != 0.5:
        raise InputError(no_threshold(threshold, num_classes))
    if num_classes > 2 and against and _num_classes(path, against, columns) != num_classes:
        raise InputError(
            f"--against {against}: expected the columns {against}_0 to {against}_{num_classes - 1}, one per "
            f"class, as {prob} has; compare models of the same classes."
        )
    if num_classes == 2 and against and against not in columns and f"{against}_0" in columns:
        raise InputError(
            f"--against {against}: it has several classes, but {prob or decision} has two; compare models of "
            "the same classes."
        )
    file = _File(path, target or None, tuple(dict.fromkeys(groups)), prob, decision, against, num_classes)
    file.check(columns)
    source = {"kind": "predictions", "path": str(path), "against": against, "data": None, "split": None}
    scores = Scores(file.groups, threshold=threshold, source=source, num_classes=num_classes)
    if decision is None and threshold == 0.5 and list(columns).count(_DECISION) == 1:
        file = replace(file, ignored=_DECISION)
    rows = differing = 0
    for table in file.read():
        with _row_named(rows):
            file.add(table, scores)
            differing += file.ignored_decisions(table, threshold)
        rows += table.num_rows
    if not rows:
        raise InputError(f"{path} has no rows.")
    if differing:
        scores.notices.append(
            f"The column '{_DECISION}' was not used: it differs from {prob} >= {threshold:g} in "
            f"{differing:,} of {rows:,} rows. Audit these decisions by --decision {_DECISION}."
        )
    return scores


def _num_classes(path: Path, name: str, columns: Sequence[str]) -> int:
    """Return the number of classes with columns ``<name>_0``, ``<name>_1`` and so on, or 2."""
    found = next(number for number in range(len(columns) + 1) if f"{name}_{number}" not in columns)
    if found in (1, 2):
        raise InputError(
            f"{path} has {' and '.join(f'{name}_{number}' for number in range(found))}, not three or more "
            f"classes: name the column of the positive class by --prob, such as --prob {name}_{found - 1}."
        )
    return max(found, 2)


@dataclass(frozen=True)
class _File:
    """The columns to read of a file."""

    path: Path
    target: str | None
    groups: tuple[str, ...]
    prob: str | None
    decision: str | None
    against: str | None
    num_classes: int = 2
    ignored: str | None = None  # a column of decisions next to the probabilities that are audited

    @property
    def probabilities(self) -> list[str]:
        """The columns of probabilities, those of the other model last."""
        names = [name for name in (self.prob, self.against) if self.prob is not None and name is not None]
        if self.num_classes == 2:
            return names
        return [f"{name}_{number}" for name in names for number in range(self.num_classes)]

    @property
    def columns(self) -> list[str]:
        against = self.against if self.prob is None else None
        named = [self.target, *self.groups, *self.probabilities, self.decision, against, self.ignored]
        return list(dict.fromkeys(name for name in named if name is not None))

    def check(self, columns: Sequence[str]) -> None:
        if len(columns) == 1 and (found := [mark for mark in ";\t|" if mark in columns[0]]):
            raise InputError(f"{self.path}: its columns are separated by {found[0]!r}; write it with commas.")
        if self.prob is None and self.decision is None:
            raise InputError(
                f"{self.path} has no column {' or '.join(map(repr, PROBABILITIES))}: name the column of "
                "probabilities by --prob, or that of decisions by --decision."
            )
        for name in self.columns:
            check_column(str(self.path), name, columns)
            if list(columns).count(name) > 1:
                raise InputError(
                    f"{self.path}: {list(columns).count(name)} columns are named '{name}': rename or remove "
                    "all except one."
                )

    def read(self) -> Iterator[Any]:
        with _explained(self.path):
            yield from _parquet(self.path, self.columns) if is_parquet(self.path) else self._read_csv()

    def _read_csv(self) -> Iterator[Any]:
        text = {name: pa.string() for name in (*self.groups, self.target) if name is not None}
        numbers = (*self.probabilities, self.against if self.prob is None else None)
        text |= {name: pa.float64() for name in numbers if name is not None}
        convert = arrow_csv.ConvertOptions(
            column_types=text, null_values=list(MISSING_VALUES), strings_can_be_null=True
        )
        with arrow_csv.open_csv(self.path, _csv_options(), convert_options=convert) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def add(self, table: Any, scores: Scores) -> None:
        classes = self.num_classes
        target = None if self.target is None else _labels(self.target, table.column(self.target), classes)
        cells = _cell_numbers([table.column(name) for name in self.groups], scores)
        probs = [_probabilities(name, table.column(name)) for name in self.probabilities]
        if classes > 2:
            probs = [np.stack(probs[at : at + classes], -1) for at in range(0, len(probs), classes)]
        decisions: list[Any] = [
            values.argmax(-1) if classes > 2 else values >= scores.threshold for values in probs
        ]
        if self.decision is not None:
            decisions[:1] = [_codes(self.decision, table.column(self.decision), classes)]
        if self.against is not None and self.prob is None:
            decisions.append(_codes(self.against, table.column(self.against)))
        scores.add(cells, np.stack(decisions), target, np.stack(probs) if probs else None)

    def ignored_decisions(self, table: Any, threshold: float) -> int:
        """Return the number of rows whose decision in the ignored column is another one, or is unclear."""
        if self.ignored is None or self.prob is None or self.num_classes > 2:
            return 0
        try:
            decisions = _codes(self.ignored, table.column(self.ignored))
        except _WrongCell:
            return int(table.num_rows)
        probs = _probabilities(self.prob, table.column(self.prob))
        return int((decisions != (probs >= threshold)).sum())


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with _explained(path):
        if is_parquet(path):
            return list(pq.read_schema(path).names)
        with arrow_csv.open_csv(path, _csv_options()) as reader:
            return list(reader.schema.names)


def read_batches(path: Path) -> Iterator[pa.Table]:
    """Yield all columns of a Parquet file, or those of a CSV file as text, some rows at a time."""
    with _explained(path):
        yield from _parquet(path) if is_parquet(path) else CsvFile(path).blocks()


def _parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    with pq.ParquetFile(path, pre_buffer=False) as file:  # or pyarrow would hold the whole file
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            yield pa.Table.from_batches([batch])


def _csv_options() -> Any:
    return arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file or folder.")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}{_advice(error)}") from error


def _cell_numbers(columns: list[Any], scores: Scores) -> Ints:
    """Return the number of the cell of each row; only distinct combinations pass through Python."""
    joint = np.zeros(len(columns[0]), np.int64)
    values = []
    for column in columns:
        encoded = _encoded(column)
        texts = [value_text(value) for value in encoded.dictionary.to_pylist()]
        values.append([None if text in MISSING_VALUES else text for text in texts])
        joint = joint * len(texts) + encoded.indices.to_numpy(zero_copy_only=False)
    sizes = [len(texts) for texts in values]
    if math.prod(sizes) > _MAX_COMBINATIONS:
        raise InputError(f"the columns of groups have {sizes} different values: too many to be groups.")
    lookup = np.zeros(math.prod(sizes), np.int64)
    for code in np.flatnonzero(np.bincount(joint, minlength=len(lookup))):
        places = np.unravel_index(code, sizes)
        lookup[code] = scores.cell(tuple(v[p] for v, p in zip(values, places, strict=True)))
    return lookup[joint]


def _encoded(column: Any) -> Any:
    """Return a column as one array of codes of its distinct values, missing ones among them."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _codes(name: str, column: Any, num_classes: int = 2) -> Ints:
    """Return the classes of a column, numbers from 0; of two, false and true as well."""
    known = {str(number): number for number in range(num_classes)}
    known |= {f"{number}.0": number for number in range(num_classes)}
    known |= {"false": 0, "true": 1} if num_classes == 2 else {}
    encoded = _encoded(column)
    codes: list[int] = []
    for value in encoded.dictionary.to_pylist():
        text = (value_text(value) or "").lower()
        if text not in known:
            row = int(np.argmax(encoded.indices.to_numpy(zero_copy_only=False) == len(codes)))
            expected = f"expected {_expected(num_classes)} in every row"
            if num_classes == 2 and text.removesuffix(".0").isdigit():
                expected += "; for more than two classes name columns NAME_0, NAME_1, ... by --prob NAME"
            raise _WrongCell(row, f"column '{name}' has {_words(value)}", f"{expected}.")
        codes.append(known[text])
    numbers: Ints = np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _expected(num_classes: int) -> str:
    return "0 or 1" if num_classes == 2 else f"a class from 0 to {num_classes - 1}"


def _labels(name: str, column: Any, num_classes: int) -> Ints:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        advice = f"expected {_expected(num_classes)} in every row; --target '' audits without true labels."
        raise _WrongCell(row, f"column '{name}' has an empty cell", advice)
    return _codes(name, column, num_classes)


def _probabilities(name: str, column: Any) -> Floats:
    values: Floats = column.cast(pa.float64()).to_numpy()
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if len(wrong):
        value = float(values[wrong[0]])
        found = f"column '{name}' has {_words(None if np.isnan(value) else value)}"
        raise _WrongCell(int(wrong[0]), found, "expected a probability from 0 to 1 in every row.")
    return values


class _WrongCell(Exception):  # noqa: N818 - never leaves this file
    """An invalid value and its row within the batch."""


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
