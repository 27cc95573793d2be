"""Encoding of a table: standardised numbers and one 0/1 column per category."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype
from torch import Tensor

from fairrf_lightning.datamodules.columns import NUMBER, Kind, TableSpec, dates_advice
from fairrf_lightning.errors import InputError

MISSING = "(missing)"
OTHER = "(other)"
_STATE_TYPES: dict[str, type | tuple[type, ...]] = {
    "columns": list,
    "encoder": Mapping,
    "expose_sensitive": bool,
    "feature_names": list,
    "include_sensitive": bool,
    "ksmote": (Mapping, type(None)),
    "membership": (Mapping, type(None)),
    "related": list,
    "remove_related": bool,
    "seed": int,
    "sensitive": (str, type(None)),
    "split": list,
    "table_options": Mapping,
}
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T]\d.*)?")
_OTHER_NUMBER = re.compile(r"[+-]?[$€£]? ?\d{1,3}([., ']?\d{3})*([.,]\d+)? ?[%$€£]?")  # 2.896,37 or 12 %
_NOT_FINITE = "missing or infinite values: drop or fill them"
_OUTSIDE = "numbers far outside the training range; correct them."
_MAX_DISTINCT = 500_000
_MAX_CERTAIN_CATEGORIES = 50  # a column with no more values holds categories, however few rows there are


@dataclass(frozen=True)
class TableEncoder:
    """Encode a table as a matrix: numeric features first, then one 0/1 column per category.

    Made by :meth:`fit` from the training rows. Numeric features are standardised by their mean and
    standard deviation there (a constant one is only centred). A category without a column counts as
    ``(other)`` and a missing one as ``(missing)``, else as ``(other)``, if these are among the
    categories of its feature; if not, it gives zeros in all columns of the feature.

    Args:
        scales: Mean and standard deviation of each numeric feature.
        categories: Sorted categories of each categorical feature.
        fills: What a missing number is replaced by; a feature that is not here may not miss any.
        indicators: Numeric features with a second column that is 1 where the number is missing.

    Example:
        >>> frame = pd.DataFrame({"job": ["b", "a"], "age": [20, 40]})
        >>> encoder = TableEncoder.fit(frame)
        >>> encoder.columns, encoder.owners
        (['age', 'job=a', 'job=b'], {'age': [0], 'job': [1, 2]})
        >>> encoder.transform(frame).tolist()
        [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """

    scales: dict[str, tuple[float, float]]
    categories: dict[str, list[str]]
    fills: dict[str, float] = field(default_factory=dict)
    indicators: list[str] = field(default_factory=list)

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, spec: TableSpec | None = None, related: Collection[str] = ()
    ) -> TableEncoder:
        """Learn the encoding of all columns of ``frame``, which holds the training rows.

        Args:
            frame: The rows. By default no number may be missing, and a column of pandas' categorical type
                keeps all categories of that type, so that the number of encoded columns does not depend on
                which rows were drawn for training.
            spec: Options for missing values and rare categories.
            related: Columns that must have a value.
        """
        kinds: dict[str, Kind] = {
            name: "number" if is_numeric_dtype(frame[name]) else "category" for name in frame.columns
        }
        every = TableSpec(categorical=tuple(kinds), missing="drop", min_count=0, max_categories=_MAX_DISTINCT)
        fit = EncoderFit(kinds, spec or every)
        fit.update(frame.astype({name: "category" for name, kind in kinds.items() if kind == "category"}))
        return fit.encoder(related)

    @property
    def columns(self) -> list[str]:
        """Names of the encoded columns, such as ``age`` and ``relationship=Wife``."""
        return [name if value is None else f"{name}={value}" for name, value in self._layout]

    @property
    def owners(self) -> dict[str, list[int]]:
        """Indices of the encoded columns of each feature."""
        owners: dict[str, list[int]] = {name: [] for name in self.kinds}
        for index, (name, _) in enumerate(self._layout):
            owners[name].append(index)
        return owners

    @property
    def _layout(self) -> list[tuple[str, str | None]]:
        """Feature and category of each encoded column."""
        numbers = [*((name, None) for name in self.scales), *((name, MISSING) for name in self.indicators)]
        return [*numbers, *((name, value) for name, found in self.categories.items() for value in found)]

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kind of each feature."""
        kinds: dict[str, Kind] = dict.fromkeys(self.scales, "number")
        return kinds | dict.fromkeys(self.categories, "category")

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """Encode ``frame`` as a float32 matrix ``(N, D)``; other columns of it are not used."""
        return self.expand(*self.compact(frame))

    def compact(self, frame: pd.DataFrame) -> tuple[Tensor, Tensor]:
        """Return numbers with indicators, float32, and the encoded column of each category, or -1."""
        owners = self.owners
        if missing := [name for name in owners if name not in frame.columns]:
            raise InputError(f"the table lacks the columns {missing} that the encoding was made for")
        numbers = np.empty((len(frame), len(self.scales) + len(self.indicators)), dtype=np.float32)
        for name, (mean, std) in self.scales.items():
            values = _filled(frame[name], self.fills.get(name))
            with np.errstate(over="ignore"):  # checked in the next line
                numbers[:, owners[name][0]] = (values - mean) / std
            _check_finite(numbers[:, owners[name][0]], name, _OUTSIDE)
        for name in self.indicators:
            numbers[:, owners[name][1]] = frame[name].isna()
        columns = np.empty((len(frame), len(self.categories)), dtype=np.int32)
        for number, (name, found) in enumerate(self.categories.items()):
            columns[:, number] = _codes(frame[name], found, owners[name][0] if found else 0)
        return torch.from_numpy(numbers), torch.from_numpy(columns)

    def expand(self, numbers: Tensor, columns: Tensor) -> Tensor:
        """Return the matrix that :meth:`compact` describes."""
        width = numbers.shape[1] + sum(map(len, self.categories.values()))
        encoded = numbers.new_zeros(len(numbers), width)
        encoded[:, : numbers.shape[1]] = numbers
        return encoded.scatter_add_(1, columns.clamp(min=0).long(), (columns >= 0).float())

    def unseen(self, frame: pd.DataFrame) -> dict[str, int]:
        """Return by feature how many rows have a category without a column, which was rare or absent before.

        >>> TableEncoder({}, {"job": ["a", "b"]}).unseen(pd.DataFrame({"job": ["a", "z", None]}))
        {'job': 1}
        """
        known = {
            name: frame[name].isna() | frame[name].astype(str).isin(of)
            for name, of in self.categories.items()
        }
        return {name: rows for name, of in known.items() if (rows := int((~of).sum()))}

    def state(self) -> dict[str, Any]:
        """Return plain values from which :meth:`from_state` makes an equal encoder."""
        return {
            "scales": {name: list(scale) for name, scale in self.scales.items()},
            "categories": {name: list(found) for name, found in self.categories.items()},
            "fills": dict(self.fills),
            "indicators": list(self.indicators),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TableEncoder:
        """Make the encoder that :meth:`state` described."""
        return cls(
            scales={name: (mean, std) for name, (mean, std) in state["scales"].items()},
            categories={name: list(found) for name, found in state["categories"].items()},
            fills=dict(state.get("fills", {})),
            indicators=list(state.get("indicators", [])),
        )


def check_state(state: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` if a state is damaged, or its encoder does not make the model's inputs."""
    for name, kind in _STATE_TYPES.items():
        if not isinstance(state.get(name), kind):
            raise _damaged(f"{name} = {state.get(name)!r}")
    for name in ("columns", "feature_names", "related"):
        if not all(isinstance(item, str) for item in state[name]):
            raise _damaged(f"{name} = {state[name]}")
    made = TableEncoder.from_state(state["encoder"]).columns
    if made != state["feature_names"]:
        trained = len(state["feature_names"])
        raise _damaged(f"its encoder makes {len(made)} input columns that are not the {trained} of the model")


def _damaged(what: str) -> InputError:
    return InputError(
        f"the checkpoint's state of the data is damaged: {what}. Restore it from a copy, or train again."
    )


def _filled(column: pd.Series[Any], fill: float | None) -> NDArray[np.float64]:
    """Return a column as float64, with missing numbers filled; raise if any remain."""
    values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if fill is not None and (missing := np.isnan(values)).any():
        values = np.where(missing, fill, values)
    _check_finite(values, column.name, _NOT_FINITE)
    return values


def _check_finite(values: NDArray[np.floating[Any]], name: object, problem: str) -> None:
    if bad := len(values) - np.count_nonzero(np.isfinite(values)):
        raise InputError(f"column '{name}' has {bad} {problem}")


def _codes(column: pd.Series[Any], categories: list[str], first: int) -> NDArray[np.int32]:
    """Return ``first`` plus the position of the category of each row, -1 for those without one."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, uniques = column.cat.codes.to_numpy(), column.cat.categories
    else:
        codes, uniques = pd.factorize(column)
    number = {category: index for index, category in enumerate(categories, start=first)}
    other = number.get(OTHER, -1)
    # The last entry is for code -1, by which pandas marks a missing value.
    missing = number.get(MISSING, other)
    lookup: NDArray[np.int32] = np.array(
        [*(number.get(str(value), other) for value in uniques), missing], np.int32
    )
    return lookup[codes]


@dataclass
class _Numbers:
    """Moments of a numeric feature, and a sample of it for the median."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    samples: list[NDArray[np.float64]] = field(default_factory=list)

    def update(self, values: NDArray[np.float64]) -> None:
        found = values[~np.isnan(values)]
        self.missing += len(values) - len(found)
        if not len(found):
            return
        # Numbers near the largest float overflow here; scale() raises when all rows are seen.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(found.mean())
            squares = float(np.square(found - mean).sum())
            total, shift = self.count + len(found), mean - self.mean
            if self.count:  # the moments of the first rows, of a table in memory all, are not rounded again
                squares += self.squares + shift * shift * self.count * len(found) / total
                mean = self.mean + shift * len(found) / total
        self.count, self.mean, self.squares = total, mean, squares
        self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

    def sample(self, values: NDArray[np.float64]) -> None:
        self.samples.append(values[~np.isnan(values)])

    def scale(self, name: str) -> tuple[float, float]:
        std = float(np.sqrt(self.squares / self.count))
        if not np.isfinite([self.mean, std]).all():
            raise InputError(
                f"column '{name}' has numbers too large to standardise ({self.low:g} to {self.high:g}): "
                f"rescale it, or leave it out (drop: [{name}])"
            )
        return self.mean, (std if std > 0 and self.low < self.high else 1.0)

    def median(self) -> float:
        sample = np.concatenate(self.samples)
        return float(np.median(sample)) if len(sample) else self.mean


class EncoderFit:
    """Learns a :class:`TableEncoder` in one pass, in memory that does not grow with the rows."""

    def __init__(self, kinds: Mapping[str, Kind], spec: TableSpec) -> None:
        self.spec = spec
        self.numbers = {name: _Numbers() for name, kind in kinds.items() if kind == "number"}
        self.counts: dict[str, Counter[str]] = {
            name: Counter() for name, kind in kinds.items() if kind == "category"
        }
        self.missing: Counter[str] = Counter()

    def update(self, frame: pd.DataFrame, sampled: NDArray[np.bool_] | None = None) -> None:
        """Add rows; medians are those of the ``sampled`` rows, by default of all."""
        for name, numbers in self.numbers.items():
            values = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
            if self.spec.missing == "drop":
                _check_finite(values, name, _NOT_FINITE)
            else:
                numbers.sample(values if sampled is None else values[sampled])
            numbers.update(values)
        for name, counts in self.counts.items():
            column = frame[name].array
            rows = np.bincount(column.codes + 1, minlength=len(column.categories) + 1)
            self.missing[name] += int(rows[0])
            found = zip(column.categories, rows[1:].tolist(), strict=True)
            counts.update({str(text): number for text, number in found if number or not self.spec.min_count})
            if len(counts) > _MAX_DISTINCT:
                raise InputError(_identifier_advice(name, f"more than {_MAX_DISTINCT:,} distinct values"))

    def encoder(self, related: Collection[str] = ()) -> TableEncoder:
        """Return the encoder, and print which columns and categories it leaves out."""
        numbers = {name: found for name, found in self.numbers.items() if found.count}
        counts = {name: found for name, found in self.counts.items() if found}
        self._report_empty({*self.numbers, *self.counts} - {*numbers, *counts}, related)
        for name, found in counts.items():
            if name not in self.spec.categorical and name != self.spec.sensitive:
                _check_categories(name, found)
        fixed = {name for name, found in numbers.items() if found.low == found.high and not found.missing}
        fixed |= {name for name, found in counts.items() if len(found) == 1 and not self.missing[name]}
        for name in sorted(fixed & set(related)):
            rank_zero_info(
                f"Data: related column '{name}' has the same value in all training rows, so the penalty "
                "cannot act on it."
            )
        kept = {name: self._kept(found) for name, found in counts.items()}
        _report_folded({name: (len(counts[name]) - len(kept[name]), len(counts[name])) for name in counts})
        with_missing = self.spec.missing == "indicator"
        return TableEncoder(
            scales={name: found.scale(name) for name, found in numbers.items()},
            categories={
                name: sorted(found)
                + [OTHER] * (len(found) < len(counts[name]) and OTHER not in found)
                + [MISSING] * (with_missing and self.missing[name] > 0 and MISSING not in found)
                for name, found in kept.items()
            },
            fills={name: found.median() for name, found in numbers.items()} if with_missing else {},
            indicators=[name for name, found in numbers.items() if with_missing and found.missing],
        )

    def _kept(self, counts: Counter[str]) -> list[str]:
        # ties are settled by the alphabet, not by the order of the rows
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.spec.max_categories]
        return [text for text, rows in ordered if rows >= self.spec.min_count]

    def _report_empty(self, names: Collection[str], related: Collection[str]) -> None:
        if lost := sorted(set(names) & set(related)):
            raise InputError(f"related: column '{lost[0]}' has no value in the training rows; leave it out")
        if len(names) == len(self.numbers) + len(self.counts):
            raise InputError(f"no column of the inputs has a value in the training rows: {sorted(names)}")
        if names:
            rank_zero_info(f"Data: columns without a value are left out: {', '.join(sorted(names))}.")


def _check_categories(name: str, counts: Counter[str]) -> None:
    """Raise if the values are dates, numbers in another notation, free text or identifiers."""
    dates = sum(_DATE.fullmatch(text) is not None for text in counts)
    if dates >= 0.95 * len(counts):
        raise InputError(dates_advice(name))
    odd = [text for text in counts if not re.fullmatch(NUMBER, text)]
    if odd and all(_OTHER_NUMBER.fullmatch(text) for text in odd):
        raise InputError(
            f"column '{name}' has numbers such as '{odd[0]}': write them with a decimal point and without "
            "units or other signs, or name the column in categorical or drop"
        )
    rows = counts.total()
    if len(counts) > _MAX_CERTAIN_CATEGORIES and 2 * len(counts) > rows:
        raise InputError(_identifier_advice(name, f"{len(counts):,} distinct values in {rows:,} rows"))


def _identifier_advice(name: str, found: str) -> str:
    return (
        f"column '{name}' has {found}: it looks like free text or an identifier, from which nothing general "
        f"can be learned. Leave it out (drop: [{name}]), or name it in categorical to keep its most "
        "frequent values"
    )


def _report_folded(folded: Mapping[str, tuple[int, int]]) -> None:
    lines = [f"{name} {few:,} of {all_:,}" for name, (few, all_) in folded.items() if few]
    if lines:
        rank_zero_info(f"Data: rare categories folded into {OTHER}: {', '.join(lines)}.")
