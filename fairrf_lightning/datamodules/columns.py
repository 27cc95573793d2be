"""Columns of a user's table: their roles, and how text and typed cells become numbers or categories."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.errors import InputError, did_you_mean, nearest

Kind: TypeAlias = Literal["number", "category"]
Missing: TypeAlias = Literal["indicator", "drop"]
Groups: TypeAlias = list[str] | Literal["all"]

MISSING_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>")
NUMERIC_TEXTS = b"fairrf_numeric_texts"  # key in the metadata of a Parquet file
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SHOWN_VALUES = 3
_MAX_CODES = 20  # up to this many distinct values may mix digits and letters, as grades and codes do
_SHOWN_COLUMNS = 50
_LABELS_WITHOUT_POSITIVE = ({"0", "1"}, {"-1", "1"}, {"false", "true"})
_MAX_GROUPS = 50


@dataclass(frozen=True)
class TableSpec:
    """The options of :class:`~fairrf_lightning.datamodules.TableDataModule` that concern columns."""

    target: str | None = None
    sensitive: str | None = None
    include_sensitive: bool = False
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: Missing = "indicator"
    missing_values: tuple[str, ...] = MISSING_VALUES
    min_count: int = 5
    max_categories: int = 100

    def check(self, columns: Sequence[str], related: Sequence[str]) -> None:
        """Raise if a name is not a column, or is used in two ways."""
        if self.target is None:
            raise InputError(
                "target is missing: name the column of the label (--data.target COLUMN). "
                f"Choices: {_some(columns)}"
            )
        needed = {
            "target": [self.target],
            "sensitive": [self.sensitive] if self.sensitive is not None else [],
            "related": related,
        }
        optional = {"categorical": self.categorical, "numeric": self.numeric, "drop": self.drop}
        for option, names in (needed | optional).items():
            for name in names:
                check_column(option, name, columns)
        if self.target == self.sensitive:
            raise InputError(f"target: '{self.target}' is also named as sensitive; name two columns")
        for option, names in needed.items():
            if both := sorted(set(names) & set(self.drop)):
                raise InputError(f"{option}: '{both[0]}' is also named in drop; take it out of one of them")
        if both := sorted(set(self.categorical) & set(self.numeric)):
            raise InputError(f"categorical: '{both[0]}' is also named in numeric; take it out of one of them")

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as plain values."""
        return {
            "target": self.target,
            "missing": self.missing,
            "missing_values": list(self.missing_values),
        }

    def restored(self, state: Mapping[str, Any]) -> TableSpec:
        """Return this specification with the values of a checkpoint; S may be another column."""
        if self.target not in (None, state["target"]):
            raise InputError(
                f"target: '{self.target}' is named, but the checkpoint was trained for "
                f"'{state['target']}'; leave the option out"
            )
        return replace(
            self,
            target=state["target"],
            sensitive=self.sensitive or state["sensitive"],
            missing=state["missing"],
            missing_values=tuple(state["missing_values"]),
        )

    def features(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are inputs of the model."""
        hidden = {self.target, *self.drop}
        if not self.include_sensitive:
            hidden.add(self.sensitive)
        features = [name for name in columns if name not in hidden]
        if not features:
            raise InputError(f"no column is left for the inputs of the model; the table has {_some(columns)}")
        return features

    def kept_rows(
        self, frame: pd.DataFrame, features: list[str], *, labelled: bool, report: bool = False
    ) -> NDArray[np.bool_]:
        """Return which rows can be used: with a label, and with all features if ``missing`` is ``drop``."""
        kept = np.ones(len(frame), dtype=bool)
        if labelled and self.target is not None:
            kept &= frame[self.target].notna().to_numpy()
        if self.missing == "drop":
            kept &= frame[features].notna().all(axis=1).to_numpy()
        if report:
            self.report_dropped(len(kept), int(kept.sum()), labelled=labelled)
        return kept

    def report_dropped(self, num_rows: int, kept: int, *, labelled: bool = True) -> None:
        """Print how many rows were left out, and why; raise if no row is left."""
        reasons = ["no label"] * labelled + ["a missing value (missing: drop)"] * (self.missing == "drop")
        if not kept and self.missing == "drop":
            raise InputError(
                f"missing: drop leaves no row, as all {num_rows:,} have {' or '.join(reasons)}: use "
                "indicator, or name the columns that miss most values in drop"
            )
        if dropped := num_rows - kept:
            rank_zero_info(f"Data: {dropped:,} rows are left out, as they have {' or '.join(reasons)}.")


def check_column(option: str, name: str, columns: Collection[str]) -> None:
    """Raise if a name is not a column, and suggest the nearest ones."""
    if name not in columns:
        near = nearest(name, columns)
        choices = f"{near}Choices" if near else "choices"
        raise InputError(f"{option}: there is no column '{name}'; {choices}: {_some(columns)}")


def check_trained_columns(needed: Collection[str], columns: Collection[str]) -> None:
    """Raise if a table lacks columns that the model was trained on."""
    for name in needed:
        check_column("the model was trained on columns that the table lacks", name, columns)


def _some(values: Collection[str]) -> str:
    shown = ", ".join(list(values)[:_SHOWN_COLUMNS])
    return shown if len(values) <= _SHOWN_COLUMNS else f"{shown}, ... ({len(values):,} in all)"


def make_frame(table: pa.Table, kinds: Mapping[str, Kind], spec: TableSpec) -> pd.DataFrame:
    """Return the columns named in ``kinds``: float64, or pandas' categorical type of text."""
    columns: dict[str, Any] = {}
    for name, kind in kinds.items():
        read = numbers if kind == "number" else categories
        columns[name] = read(name, table.column(name), spec.missing_values)
    return pd.DataFrame(columns, index=range(table.num_rows))


def infer_kinds(table: pa.Table, features: Sequence[str], spec: TableSpec, *, typed: bool) -> dict[str, Kind]:
    """Return the kind of each feature; text is text if ``typed``, unless its file lists it as numbers."""
    noted = (table.schema.metadata or {}).get(NUMERIC_TEXTS)  # by the conversion of a CSV file
    numeric = [] if noted is None else json.loads(noted)
    return {
        name: "number"
        if name in numeric and name not in spec.categorical and name != spec.sensitive
        else _kind(name, table.column(name), spec, typed=typed)
        for name in features
    }


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
            odd = odd.filter(pc.invert(pc.match_substring_regex(odd, NUMBER)))
            raise InputError(_not_numbers(name, len(odd), odd.unique().to_pylist())) from None
    try:
        column = column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"column '{name}' is of type {column.type} and cannot become numbers") from None
    values: NDArray[np.float64] = column.to_numpy()
    if infinite := np.count_nonzero(np.isinf(values)):
        raise InputError(
            f"column '{name}' has {infinite:,} infinite values: replace them by numbers, or leave these "
            "cells empty so that they count as missing"
        )
    return values


def categories(name: str, column: pa.ChunkedArray, missing: Collection[str] = ()) -> pd.Categorical:
    """Return a column as pandas' categorical type: sorted text without outer blanks."""
    check_scalar_type(name, column.type)
    encoded = pc.dictionary_encode(column).unify_dictionaries()
    values = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    texts = [value_text(value) for value in values]
    known = sorted({text for text in texts if text is not None and text not in missing})
    number = {text: code for code, text in enumerate(known)}
    # The last entry is for the missing cells.
    recoded = np.array([*(number.get(text, -1) if text is not None else -1 for text in texts), -1], np.int32)
    indices = [chunk.indices.fill_null(len(texts)).to_numpy() for chunk in encoded.chunks]
    codes = recoded[np.concatenate(indices)] if indices else np.array([], dtype=np.int32)
    return pd.Categorical.from_codes(codes, categories=pd.Index(known, dtype="str"), validate=False)


def value_text(value: object) -> str | None:
    """Return the text of a value as categories have it: ``1.0`` is 1, and NaN is missing.

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


@dataclass
class TextValues:
    """Decides whether a text column holds numbers or categories, from its values in blocks."""

    missing: Collection[str] = ()
    _are_numbers: bool = True
    _rows: int = 0
    _odd_rows: int = 0
    _distinct: set[str] = field(default_factory=set)
    _odd: dict[str, None] = field(default_factory=dict)  # in the order of the rows

    def update(self, column: pa.ChunkedArray) -> None:
        """Add a block of the column."""
        values = _blank(column, self.missing).drop_null()
        self._rows += len(values)
        if len(self._distinct) <= _MAX_CODES:
            self._distinct.update(values.unique().slice(0, 2 * _MAX_CODES).to_pylist())
        try:
            values.cast(pa.float64())
        except pa.ArrowInvalid:
            self._are_numbers = False
            counts = pa.table(pc.value_counts(values).flatten(), ["text", "rows"])
            odd = counts.filter(pc.invert(pc.match_substring_regex(counts["text"], NUMBER)))
            self._odd_rows += pc.sum(odd["rows"], min_count=0).as_py()
            if len(self._odd) < _SHOWN_VALUES:
                self._odd |= dict.fromkeys(odd["text"].slice(0, _SHOWN_VALUES).to_pylist())

    def kind(self, name: str) -> Kind:
        """Return the kind of the column.

        Raises:
            InputError: If most cells, but not all, are numbers.
        """
        if self._are_numbers:
            return "number"
        if len(self._distinct) > _MAX_CODES and 2 * (self._rows - self._odd_rows) >= self._rows:
            raise InputError(_not_numbers(name, self._odd_rows, list(self._odd)))
        return "category"


def _kind(name: str, column: pa.ChunkedArray, spec: TableSpec, *, typed: bool) -> Kind:
    type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if name in spec.categorical or name == spec.sensitive:
        return "category"
    if name in spec.numeric or pa.types.is_null(type_):
        return "number"
    if pa.types.is_temporal(type_):
        raise InputError(dates_advice(name))
    check_scalar_type(name, type_)
    if not typed and _is_text(type_):
        found = TextValues(spec.missing_values)
        for block in column.chunks:
            found.update(block)
        return found.kind(name)
    return "category" if pa.types.is_boolean(type_) or _is_text(type_) else "number"


def _blank(column: pa.ChunkedArray, missing: Collection[str]) -> pa.ChunkedArray:
    """Return text without outer blanks, null where it stands for a missing value."""
    column = pc.utf8_trim_whitespace(column)
    absent = pc.is_in(column, pa.array(list(missing), column.type))
    return pc.if_else(absent, pa.scalar(None, column.type), column)


def _not_numbers(name: str, rows: int, texts: list[str]) -> str:
    shown = ", ".join(repr(text if len(text) <= 30 else f"{text[:30]}...") for text in texts[:_SHOWN_VALUES])
    return (
        f"column '{name}' has {rows:,} values that are no numbers, such as {shown}: name these in "
        "missing_values if they stand for a missing number, or name the column in categorical or drop"
    )


def dates_advice(name: str) -> str:
    """Return the error for a column of dates."""
    return (
        f"column '{name}' holds dates, which cannot be inputs as they are: turn them into numbers, such as "
        f"an age in years, or leave the column out (drop: [{name}]), or name it in categorical"
    )


def check_scalar_type(name: str, type_: pa.DataType) -> None:
    """Raise :class:`InputError` if a column holds lists, structs or bytes, which are no categories."""
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if pa.types.is_nested(plain) or any(is_kind(plain) for is_kind in binary):
        raise InputError(
            f"column '{name}' is of type {plain} and cannot be an input, the label or S: make a column of "
            f"text or numbers from it, or leave it out (drop: [{name}])"
        )


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def check_groups(groups: Sequence[str] | Literal["all"]) -> None:
    """Raise if a choice of groups leaves nothing to compare."""
    if groups == "all":
        return
    if isinstance(groups, str) or len(set(groups)) < max(2, len(groups)):
        raise InputError(f"groups must be 'all', or two or more different groups of S, not {groups}")


def check_group_names(sensitive: str, names: Collection[str], *, chosen: bool = False) -> None:
    """Raise if the values of S cannot be groups to compare; too many are fine if some are ``chosen``."""
    if len(names) < 2:
        found = f"has one value only ({', '.join(names)})" if names else "has no value"
        raise InputError(
            f"sensitive: '{sensitive}' {found}; a gap compares groups. "
            "Leave the option out and name the column in drop, so that it is no input."
        )
    if len(names) > _MAX_GROUPS and not chosen:
        raise InputError(
            f"sensitive: '{sensitive}' has {len(names):,} values; gaps compare up to {_MAX_GROUPS} groups. "
            "Choose some by groups, or make a column of a few groups from it, such as age bands."
        )


def group_ids(sensitive: pd.Series[Any], groups: Sequence[str] | Literal["all"]) -> tuple[Tensor, list[str]]:
    """Number the groups of S that are compared.

    Args:
        sensitive: S of each row, missing where it is not known.
        groups: Names of the groups, or ``"all"``.

    Returns:
        The id of each row, -1 where S is not known or its group not compared, and the groups' names
        in the order of their ids, sorted.

    >>> group_ids(pd.Series(["c", "a", None, "b"]), ["a", "c"])
    (tensor([ 1,  0, -1, -1]), ['a', 'c'])
    """
    codes, found = pd.factorize(sensitive, sort=True)
    names = [str(name) for name in found]
    for name in () if groups == "all" else groups:
        if name not in names:
            raise InputError(
                f"groups: there is no '{name}' in '{sensitive.name}'; {did_you_mean(name, names)}"
            )
    compared = [name for name in names if groups == "all" or name in groups]
    # The last entry is for code -1, by which pandas marks a missing value.
    lookup = torch.tensor([*(compared.index(name) if name in compared else -1 for name in names), -1])
    return lookup[torch.tensor(codes, dtype=torch.int64)], compared


def label_codes(target: str, values: Collection[str], positive: object = None) -> dict[str, int]:
    """Return 0 or 1 for each of the two values of the target.

    >>> label_codes("hired", ["no", "yes"], positive="yes")
    {'no': 0, 'yes': 1}
    """
    found = sorted({normalise_label(value) for value in values})
    shown = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
    if len(found) != 2:
        raise InputError(
            f"target: '{target}' has {len(found)} value(s) ({shown}), but must have two. "
            + ("Make it a column of two values first." if len(found) > 2 else "Add rows of the other class.")
        )
    if positive is None:
        if set(found) not in _LABELS_WITHOUT_POSITIVE:
            raise InputError(f"positive: say which value of '{target}' is the positive one: {shown}")
        return {value: int(value in ("1", "true")) for value in found}
    chosen = normalise_label(value_text(positive) or "")
    if chosen not in found:
        raise InputError(f"positive: '{target}' has no value '{chosen}'; {did_you_mean(chosen, found)}")
    return {value: int(value == chosen) for value in found}


def normalise_label(text: str) -> str:
    """Return one spelling for equal numbers and truth values, other text as it is.

    >>> normalise_label("1.0"), normalise_label("True"), normalise_label("Yes")
    ('1', 'true', 'Yes')
    """
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return value_text(float(text)) or text
    except (ValueError, OverflowError):
        return text


def labels(target: str, column: pd.Categorical, codes: Mapping[str, int]) -> NDArray[np.float32]:
    """Return 0 or 1 for each row, NaN where the label is missing; raise if there is another label."""
    if unknown := [text for text in map(normalise_label, column.categories) if text not in codes]:
        raise InputError(
            f"target: '{target}' has the value '{unknown[0]}', but the model knows {', '.join(codes)} only"
        )
    return known_labels(column, codes)


def known_labels(column: pd.Categorical, codes: Mapping[str, int]) -> NDArray[np.float32]:
    """Return 0 or 1 for each row, NaN where the label is missing or another one."""
    values = [codes.get(normalise_label(text), np.nan) for text in column.categories]
    lookup: NDArray[np.float32] = np.array([*values, np.nan], dtype=np.float32)
    return lookup.take(column.codes, mode="wrap")  # code -1, no label, takes the last entry
