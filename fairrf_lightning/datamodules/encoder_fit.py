"""Learn the encoding of a table in one pass, in memory that does not grow with the rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from fairrf_lightning.datamodules.encoding import MISSING, OTHER, TableEncoder
from fairrf_lightning.datamodules.table_columns import dates_advice
from fairrf_lightning.datamodules.table_spec import Kind, TableSpec
from fairrf_lightning.errors import InputError

_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T]\d.*)?")
_MOST_DISTINCT = 500_000
_FEW_DISTINCT = 50  # a column with so few values is one of categories, however few rows there are


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

    def update(self, values: NDArray[np.float64], sampled: NDArray[np.bool_] | None) -> None:
        known = ~np.isnan(values)
        found = values[known]
        self.missing += len(values) - len(found)
        self.samples.append(found if sampled is None else values[known & sampled])
        if not len(found):
            return
        # Numbers near the largest float overflow here and are refused when all rows are seen.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(found.mean())
            total, shift = self.count + len(found), mean - self.mean
            squares = float(np.square(found - mean).sum())
            self.squares += squares + shift * shift * self.count * len(found) / total
            self.mean += shift * len(found) / total
        self.count = total
        self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

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
    """Gathers from training rows what a :class:`TableEncoder` is made of.

    Args:
        kinds: Which features are numbers and which are categories.
        spec: How missing values and rare categories are treated.
    """

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
            numbers.update(frame[name].to_numpy(), sampled)
        for name, counts in self.counts.items():
            column = frame[name].array
            rows = np.bincount(column.codes + 1, minlength=len(column.categories) + 1)
            self.missing[name] += int(rows[0])
            counts.update({text: int(n) for text, n in zip(column.categories, rows[1:], strict=True) if n})
            if len(counts) > _MOST_DISTINCT:
                raise InputError(_identifier_advice(name, f"more than {_MOST_DISTINCT:,} distinct values"))

    def encoder(self, related: Collection[str]) -> TableEncoder:
        """Return the encoder; print which columns and categories it leaves out."""
        numbers = {name: found for name, found in self.numbers.items() if found.count}
        counts = {name: found for name, found in self.counts.items() if found}
        self._report_empty({*self.numbers, *self.counts} - {*numbers, *counts}, related)
        for name, found in counts.items():
            if name not in self.spec.categorical and name != self.spec.sensitive:
                _refuse_dates_and_identifiers(name, found)
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


def _refuse_dates_and_identifiers(name: str, counts: Counter[str]) -> None:
    dates = sum(_DATE.fullmatch(text) is not None for text in counts)
    if dates >= 0.95 * len(counts):
        raise InputError(dates_advice(name))
    rows = counts.total()
    if len(counts) > _FEW_DISTINCT and 2 * len(counts) > rows:
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
