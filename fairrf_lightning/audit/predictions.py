"""Reads predictions of any model from a CSV or Parquet file, in batches and constant memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from fairrf_lightning.audit.scores import Floats, Ints, Scores, no_threshold
from fairrf_lightning.datamodules.columns import MISSING_VALUES, check_column, value_text
from fairrf_lightning.datamodules.score_files import (
    PROBABILITIES,
    column_names,
    csv_options,
    is_parquet,
    parquet_batches,
    reading,
)
from fairrf_lightning.errors import InputError

_MAX_COMBINATIONS = 1 << 20
_TARGET = "target"
_DECISION = "decision"  # `predict` writes it, next to probabilities that agree with it


def read_predictions(
    path: Path,
    groups: Sequence[str],
    *,
    target: str | None = None,
    prob: str | None = None,
    decision: str | None = None,
    against: str | None = None,
    threshold: float = 0.5,
    positive: str | None = None,
) -> Scores:
    """Count the predictions in a CSV or Parquet file with one line per row, read once.

    The arguments are those of :func:`~fairrf_lightning.audit.analysis.audit`. An empty cell is an unknown
    group. True classes are 0 and 1 (or false and true), numbers from 0 of more than two classes, or two words
    of which ``positive`` names one.

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
    if positive is not None and num_classes > 2:
        raise InputError(
            f"--positive {positive}: for two classes, but {prob} has {num_classes}; leave it out."
        )
    words = _Words(positive)
    file = _File(
        path, target or None, tuple(dict.fromkeys(groups)), prob, decision, against, words, num_classes
    )
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
    words.check()
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


class _Words:
    """Classes that are words, such as yes and no: the positive one, and the other one of each column."""

    def __init__(self, positive: str | None) -> None:
        self.positive = None if positive is None or positive.lower() in ("1", "true") else positive
        self._negative: dict[str, str] = {}
        self._found = False

    def code(self, column: str, word: str) -> int | None:
        """Return 1 for the positive word, 0 for the other one, and ``None`` for a third."""
        if self.positive is None:
            return None
        if word == self.positive:
            self._found = True
            return 1
        return 0 if self._negative.setdefault(column, word) == word else None

    def expected(self, column: str) -> str:
        """Return the advice for a value that is no class."""
        if self.positive is None:
            return "expected 0 or 1 in every row; if these are words, name the positive one by --positive"
        return f"expected {self.positive!r} or {self._negative[column]!r} in every row"

    def check(self) -> None:
        """Raise if no row has the positive word."""
        if self.positive is not None and not self._found:
            others = ", ".join(f"'{column}' has {word!r}" for column, word in self._negative.items())
            raise InputError(
                f"--positive {self.positive}: no row has this value; "
                f"{others or 'columns of 0 and 1 are read without it'}."
            )


@dataclass(frozen=True)
class _File:
    """The columns to read of a file."""

    path: Path
    target: str | None
    groups: tuple[str, ...]
    prob: str | None
    decision: str | None
    against: str | None
    words: _Words
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
        with reading(self.path):
            yield from parquet_batches(self.path, self.columns) if is_parquet(self.path) else self._read_csv()

    def _read_csv(self) -> Iterator[Any]:
        text = {name: pa.string() for name in (*self.groups, self.target) if name is not None}
        numbers = (*self.probabilities, self.against if self.prob is None else None)
        text |= {name: pa.float64() for name in numbers if name is not None}
        convert = arrow_csv.ConvertOptions(
            column_types=text, null_values=list(MISSING_VALUES), strings_can_be_null=True
        )
        with arrow_csv.open_csv(self.path, csv_options(), convert_options=convert) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def add(self, table: Any, scores: Scores) -> None:
        classes, words = self.num_classes, self.words
        target = None
        if self.target is not None:
            target = _labels(self.target, table.column(self.target), words, classes)
        cells = _cell_numbers([table.column(name) for name in self.groups], scores)
        probs = [_probabilities(name, table.column(name)) for name in self.probabilities]
        if classes > 2:
            probs = [np.stack(probs[at : at + classes], -1) for at in range(0, len(probs), classes)]
        decisions: list[Any] = [
            values.argmax(-1) if classes > 2 else values >= scores.threshold for values in probs
        ]
        if self.decision is not None:
            decisions[:1] = [_codes(self.decision, table.column(self.decision), words, classes)]
        if self.against is not None and self.prob is None:
            decisions.append(_codes(self.against, table.column(self.against), words))
        scores.add(cells, np.stack(decisions), target, np.stack(probs) if probs else None)

    def ignored_decisions(self, table: Any, threshold: float) -> int:
        """Return the number of rows whose decision in the ignored column is another one, or is unclear."""
        if self.ignored is None or self.prob is None or self.num_classes > 2:
            return 0
        try:
            decisions = _codes(self.ignored, table.column(self.ignored), self.words)
        except _WrongCell:
            return int(table.num_rows)
        probs = _probabilities(self.prob, table.column(self.prob))
        return int((decisions != (probs >= threshold)).sum())


def is_checkpoint(source: Path) -> bool:
    """Return whether a path is a run folder or a checkpoint, not a file of predictions.

    Raises:
        InputError: If it is a spreadsheet.
    """
    if source.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise InputError(f"{source}: this is a spreadsheet; save it as CSV.")
    if source.is_dir() or not source.is_file():
        return source.is_dir() or source.suffix in (".ckpt", ".pt", ".pth")
    return zipfile.is_zipfile(source) or source.suffix == ".ckpt"


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


def _codes(name: str, column: Any, words: _Words, num_classes: int = 2) -> Ints:
    """Return the classes of a column, numbers from 0; of two, false and true or words as well."""
    known = {str(number): number for number in range(num_classes)}
    known |= {f"{number}.0": number for number in range(num_classes)}
    known |= {"false": 0, "true": 1} if num_classes == 2 else {}
    encoded = _encoded(column)
    codes: list[int] = []
    for value in encoded.dictionary.to_pylist():
        word = value_text(value) or ""
        text = word.lower()
        code = known.get(text)
        is_word = num_classes == 2 and bool(word) and not _is_number(text)
        if code is None and is_word:
            code = words.code(name, word)
        if code is None:
            row = int(np.argmax(encoded.indices.to_numpy(zero_copy_only=False) == len(codes)))
            expected = f"expected {_expected(num_classes)} in every row"
            if num_classes == 2 and text.removesuffix(".0").isdigit():
                expected += "; for more than two classes name columns NAME_0, NAME_1, ... by --prob NAME"
            elif is_word:
                expected = words.expected(name)
            raise _WrongCell(row, f"column '{name}' has {_words(value)}", f"{expected}.")
        codes.append(code)
    numbers: Ints = np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _expected(num_classes: int) -> str:
    return "0 or 1" if num_classes == 2 else f"a class from 0 to {num_classes - 1}"


def _labels(name: str, column: Any, words: _Words, num_classes: int) -> Ints:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        advice = f"expected {_expected(num_classes)} in every row; --target '' audits without true labels."
        raise _WrongCell(row, f"column '{name}' has an empty cell", advice)
    return _codes(name, column, words, num_classes)


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


def _words(value: Any) -> str:
    return "an empty cell" if value is None else f"the value {value!r}"
