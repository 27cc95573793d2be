"""Columns of a table as read, text or typed, become numbers or categories."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.table_spec import Kind, TableSpec
from fairrf_lightning.errors import InputError

NUMERIC_TEXTS = b"fairrf_numeric_texts"  # key in the metadata of a Parquet file
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SHOWN = 3  # values that an error names
_FEW = 20  # so many distinct values may mix digits and letters, as grades and codes do


def make_frame(table: pa.Table, kinds: Mapping[str, Kind], spec: TableSpec) -> pd.DataFrame:
    """Return the columns named in ``kinds``: float64, or pandas' categorical type of text."""
    columns: dict[str, Any] = {}
    for name, kind in kinds.items():
        column = table.column(name)
        read = numbers if kind == "number" else categories
        columns[name] = read(name, column, spec.missing_values)
    return pd.DataFrame(columns, index=range(table.num_rows))


def infer_kinds(table: pa.Table, features: Sequence[str], spec: TableSpec, *, typed: bool) -> dict[str, Kind]:
    """Return the kind of each feature; text is text if ``typed``, unless its file says that it is numbers."""
    numeric = numeric_texts(table.schema)
    return {
        name: "number"
        if name in numeric and name not in spec.categorical and name != spec.sensitive
        else _kind(name, table.column(name), spec, typed=typed)
        for name in features
    }


def numeric_texts(schema: pa.Schema) -> list[str]:
    """Return the text columns whose cells are all numbers, as noted when a CSV file was converted."""
    noted = (schema.metadata or {}).get(NUMERIC_TEXTS)
    names: list[str] = [] if noted is None else json.loads(noted)
    return names


def kinds_of(encoder: TableEncoder) -> dict[str, Kind]:
    """Return the kinds of the features that an encoder was made for."""
    kinds: dict[str, Kind] = dict.fromkeys(encoder.scales, "number")
    return kinds | dict.fromkeys(encoder.categories, "category")


def kept_rows(
    frame: pd.DataFrame, features: list[str], spec: TableSpec, *, labelled: bool
) -> NDArray[np.bool_]:
    """Return which rows can be used: those with a label, and without gaps if these are dropped."""
    kept = np.ones(len(frame), dtype=bool)
    if labelled and spec.target is not None:
        kept &= frame[spec.target].notna().to_numpy()
    if spec.missing == "drop":
        kept &= frame[features].notna().all(axis=1).to_numpy()
    return kept


def report_dropped(num_rows: int, kept: int, spec: TableSpec, *, labelled: bool = True) -> None:
    """Print how many rows were left out, and why; refuse to go on if that were all of them."""
    reasons = ["no label"] * labelled + ["a missing value (missing: drop)"] * (spec.missing == "drop")
    if not kept and spec.missing == "drop":
        raise InputError(
            f"missing: drop leaves no row, as all {num_rows:,} have {' or '.join(reasons)}: use indicator, "
            "or name the columns that miss most values in drop"
        )
    if dropped := num_rows - kept:
        rank_zero_info(f"Data: {dropped:,} rows are left out, as they have {' or '.join(reasons)}.")


def numbers(name: str, column: pa.ChunkedArray, missing: Collection[str] = ()) -> NDArray[np.float64]:
    """Return a column as float64, NaN where it is missing."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column.type):
        column = _blank(column, missing)
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            odd = column.drop_null()
            odd = odd.filter(pc.invert(pc.match_substring_regex(odd, _NUMBER)))
            raise InputError(_not_numbers(name, len(odd), odd.unique().to_pylist())) from None
    try:
        column = column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"column '{name}' is of type {column.type} and cannot become numbers") from None
    values: NDArray[np.float64] = column.to_numpy()
    if infinite := int(np.isinf(values).sum()):
        raise InputError(
            f"column '{name}' has {infinite:,} infinite values: replace them by numbers, or leave these "
            "cells empty so that they count as missing"
        )
    return values


def categories(name: str, column: pa.ChunkedArray, missing: Collection[str] = ()) -> pd.Categorical:
    """Return a column as pandas' categorical type: sorted text without outer blanks."""
    check_plain(name, column.type)
    encoded = pc.dictionary_encode(column).unify_dictionaries()
    values = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    texts = [value_text(value) for value in values]
    known = sorted({text for text in texts if text is not None and text not in missing})
    number = {text: code for code, text in enumerate(known)}
    # The last entry serves the missing cells.
    recoded = np.array([*(number.get(text, -1) if text is not None else -1 for text in texts), -1])
    indices = [chunk.indices.fill_null(len(texts)).to_numpy() for chunk in encoded.chunks]
    codes = recoded[np.concatenate(indices)] if indices else np.array([], dtype=np.int64)
    return pd.Categorical.from_codes(codes, categories=pd.Index(known, dtype="str"))


def value_text(value: object) -> str | None:
    """Return the text by which a value is known: ``1.0`` is 1, and NaN is missing.

    >>> value_text(1.0), value_text(True), value_text(" a "), value_text(float("nan"))
    ('1', 'true', 'a', None)
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    return None if value is None else str(value).strip()


def _kind(name: str, column: pa.ChunkedArray, spec: TableSpec, *, typed: bool) -> Kind:
    type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if name in spec.categorical or name == spec.sensitive:
        return "category"
    if name in spec.numeric or pa.types.is_null(type_):
        return "number"
    if pa.types.is_temporal(type_):
        raise InputError(dates_advice(name))
    check_plain(name, type_)
    if not typed and _is_text(type_):
        return _kind_of_text(name, column, spec)
    return "category" if pa.types.is_boolean(type_) or _is_text(type_) else "number"


def _kind_of_text(name: str, column: pa.ChunkedArray, spec: TableSpec) -> Kind:
    values = _blank(column, spec.missing_values).drop_null()
    if _are_numbers(values):
        return "number"
    found = TextValues()
    found.update(values)
    return found.kind(name)


def _are_numbers(values: pa.ChunkedArray) -> bool:
    try:
        values.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


@dataclass
class TextValues:
    """Decides whether a text column holds numbers or categories, from its values in blocks.

    Args:
        missing: Cells that count as missing.
    """

    missing: Collection[str] = ()
    _are_numbers: bool = True
    _rows: int = 0
    _odd_rows: int = 0
    _distinct: set[str] = field(default_factory=set)
    _odd: dict[str, None] = field(default_factory=dict)  # in the order of the rows

    def update(self, column: pa.ChunkedArray) -> None:
        """Add a block of the column."""
        values = _blank(column, self.missing).drop_null()
        self._are_numbers = self._are_numbers and _are_numbers(values)
        counts = pc.value_counts(values)
        texts, rows = counts.field("values"), counts.field("counts").to_numpy()
        odd = ~pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False).astype(bool)
        self._rows += len(values)
        self._odd_rows += int(rows[odd].sum())
        if len(self._distinct) <= _FEW:
            self._distinct.update(texts.slice(0, 2 * _FEW).to_pylist())
        if len(self._odd) < _SHOWN:
            self._odd |= dict.fromkeys(texts.filter(pa.array(odd)).slice(0, _SHOWN).to_pylist())

    def kind(self, name: str) -> Kind:
        """Return the kind of the column.

        Raises:
            InputError: If most cells, but not all, are numbers.
        """
        if self._are_numbers:
            return "number"
        if len(self._distinct) > _FEW and 2 * (self._rows - self._odd_rows) >= self._rows:
            raise InputError(_not_numbers(name, self._odd_rows, list(self._odd)))
        return "category"


def _blank(column: pa.ChunkedArray, missing: Collection[str]) -> pa.ChunkedArray:
    """Return text without outer blanks, null where it is a sign of a missing value."""
    column = pc.utf8_trim_whitespace(column)
    absent = pc.is_in(column, pa.array(list(missing), column.type))
    return pc.if_else(absent, pa.scalar(None, column.type), column)


def _not_numbers(name: str, rows: int, texts: list[str]) -> str:
    shown = ", ".join(repr(_short(text)) for text in texts[:_SHOWN])
    return (
        f"column '{name}' has {rows:,} values that are no numbers, such as {shown}: name these in "
        "missing_values if they stand for a missing number, or name the column in categorical or drop"
    )


def _short(text: str, most: int = 30) -> str:
    return text if len(text) <= most else text[:most] + "..."


def dates_advice(name: str) -> str:
    """Return what to do about a column of dates."""
    return (
        f"column '{name}' holds dates, which cannot be inputs as they are: turn them into numbers, such as "
        f"an age in years, or leave the column out (drop: [{name}]), or name it in categorical"
    )


def check_plain(name: str, type_: pa.DataType) -> None:
    """Raise :class:`InputError` if a column holds lists, structs or bytes, which are no categories."""
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_nested(plain) or _is_binary(plain):
        raise InputError(
            f"column '{name}' is of type {plain} and cannot be an input, the label or S: make a column of "
            f"text or numbers from it, or leave it out (drop: [{name}])"
        )


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_binary(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_kind(type_) for is_kind in kinds)
