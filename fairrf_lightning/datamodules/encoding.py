"""Turn the columns of a table into numbers: standardised numbers and 0/1 categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_numeric_dtype
from torch import Tensor

from fairrf_lightning.errors import InputError

MISSING = "(missing)"
OTHER = "(other)"


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
    def fit(cls, frame: pd.DataFrame) -> TableEncoder:
        """Learn the encoding of all columns of ``frame``, which holds the training rows.

        A column of pandas' categorical type keeps all categories of that type, so that the number
        of encoded columns does not depend on which rows were drawn for training.
        """
        numeric = [name for name in frame.columns if is_numeric_dtype(frame[name])]
        values = _finite(frame, numeric)
        mean = values.mean(axis=0)
        std = values.std(axis=0)
        # rounding can give a constant column a tiny deviation, and a tiny one a deviation of 0
        std[(np.ptp(values, axis=0) == 0) | (std == 0)] = 1.0
        scales = zip(mean.tolist(), std.tolist(), strict=True)
        return cls(
            scales=dict(zip(numeric, scales, strict=True)),
            categories={name: _categories(frame[name]) for name in frame.columns if name not in numeric},
        )

    @property
    def columns(self) -> list[str]:
        """Names of the encoded columns, such as ``age`` and ``relationship=Wife``."""
        indicators = [f"{name}={MISSING}" for name in self.indicators]
        dummies = [f"{name}={value}" for name, found in self.categories.items() for value in found]
        return [*self.scales, *indicators, *dummies]

    @property
    def owners(self) -> dict[str, list[int]]:
        """Indices of the encoded columns of each feature."""
        owners = {name: [index] for index, name in enumerate(self.scales)}
        for index, name in enumerate(self.indicators, start=len(self.scales)):
            owners[name].append(index)
        start = len(self.scales) + len(self.indicators)
        for name, found in self.categories.items():
            owners[name] = list(range(start, start + len(found)))
            start += len(found)
        return owners

    def transform(self, frame: pd.DataFrame) -> Tensor:
        """Encode ``frame`` as a float32 matrix ``(N, D)``; other columns of it are not used."""
        if missing := [name for name in self.owners if name not in frame.columns]:
            raise InputError(f"the table lacks the columns {missing} that the encoding was made for")
        owners = self.owners
        encoded = np.zeros((len(frame), sum(map(len, owners.values()))), dtype=np.float32)
        mean, std = np.array(list(self.scales.values())).reshape(-1, 2).T
        with np.errstate(over="ignore"):  # refused in the next line
            encoded[:, : len(mean)] = (_finite(frame, list(self.scales), self.fills) - mean) / std
        _refuse_overflow(list(self.scales), encoded)
        for name in self.indicators:
            encoded[:, owners[name][1]] = frame[name].isna()
        for name, found in self.categories.items():
            codes = _codes(frame[name], found)
            known = np.flatnonzero(codes >= 0)
            encoded[known, owners[name][0] + codes[known]] = 1.0
        return torch.from_numpy(encoded)

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


def _finite(
    frame: pd.DataFrame, names: list[str], fills: Mapping[str, float] | None = None
) -> np.ndarray[tuple[int, int], Any]:
    values = frame[names].to_numpy(dtype=np.float64, na_value=np.nan)
    if fills:
        fill = np.array([fills.get(name, np.nan) for name in names])
        values = np.where(np.isnan(values), fill, values)
    for name, bad in zip(names, (~np.isfinite(values)).sum(axis=0), strict=True):
        if bad:
            raise InputError(f"column '{name}' has {bad} missing or infinite values: drop or fill them")
    return values


def _refuse_overflow(names: list[str], encoded: np.ndarray[tuple[int, int], Any]) -> None:
    for name, bad in zip(names, (~np.isfinite(encoded[:, : len(names)])).sum(axis=0), strict=True):
        if bad:
            raise InputError(
                f"column '{name}' has {bad} numbers far outside the training range; correct them."
            )


def _categories(column: pd.Series[Any]) -> list[str]:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return sorted(map(str, column.cat.categories))
    return sorted(map(str, column.dropna().unique()))


def _codes(column: pd.Series[Any], categories: list[str]) -> np.ndarray[tuple[int], Any]:
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, uniques = column.cat.codes.to_numpy(), column.cat.categories
    else:
        codes, uniques = pd.factorize(column)
    number = {category: index for index, category in enumerate(categories)}
    other = number.get(OTHER, -1)
    # The last entry serves code -1, by which pandas marks a missing value.
    missing = number.get(MISSING, other)
    lookup = np.array([*(number.get(str(value), other) for value in uniques), missing])
    return lookup[codes]
