"""Counts of the rows of each cell: a combination of values of the attributes. One pass, batch by batch.

All figures of an audit follow from these counts. AUC is exact up to ``EXACT_ROWS`` rows; beyond, scores
are counted in 2**16 equal bins, and ties within a bin make it inexact by at most the share of
positive-negative pairs in one bin, halved, which is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairrf_lightning.errors import InputError

BINS = 1 << 16
CALIBRATION_BINS = 10
EXACT_ROWS = 1 << 20
MAX_CELLS = 256

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Batch:
    """Some rows: what was predicted, what was true, and the cell of each.

    Args:
        target: Classes 0 or 1, or ``None`` without true labels.
        cells: Number of the cell of each row.
        decisions: Decisions 0 or 1 of each model, ``(models, N)``.
        probs: Probabilities of each model ``(models, N)``, or ``None``.
    """

    target: Ints | None
    cells: Ints
    decisions: Ints
    probs: Floats | None


@dataclass
class CellCounts:
    """Sums over the rows of each cell and class, for one model or two on the same rows.

    Without true labels all rows are counted as class 0, and nothing is to be read from the classes.

    Args:
        names: Values of the attributes of each cell, ``None`` where unknown.
        has_labels: Whether the rows have true labels.
    """

    names: list[tuple[str | None, ...]] = field(default_factory=list)
    rows: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    positive: Ints = field(default_factory=lambda: np.zeros((2, 0, 2), np.int64))
    both: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    sums: Floats = field(default_factory=lambda: np.zeros((2, 0, 2)))
    squares: Floats = field(default_factory=lambda: np.zeros((2, 0, 2)))
    products: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    bin_rows: Ints = field(default_factory=lambda: np.zeros((0, 2, CALIBRATION_BINS), np.int64))
    bin_sums: Floats = field(default_factory=lambda: np.zeros((0, 2, CALIBRATION_BINS)))
    has_probs: bool = False
    has_labels: bool = True
    num_models: int = 1
    _kept: list[tuple[Ints, Floats]] | None = field(default_factory=list)
    _histogram: NDArray[np.uint32] = field(default_factory=lambda: np.zeros((0, 2, BINS), np.uint32))
    _numbers: dict[tuple[str | None, ...], int] = field(default_factory=dict)

    def number(self, name: tuple[str | None, ...]) -> int:
        """Return the number of a cell, a new one if it was not seen before."""
        if name not in self._numbers:
            if len(self.names) == MAX_CELLS:
                raise InputError(
                    f"the attributes have more than {MAX_CELLS} combinations of values: name fewer of them, "
                    "or make columns of a few groups, such as age bands."
                )
            self._numbers[name] = len(self.names)
            self.names.append(name)
            self._grow()
        return self._numbers[name]

    def update(self, batch: Batch) -> None:
        """Add rows."""
        self.num_models = len(batch.decisions)
        self.has_labels = batch.target is not None
        key = batch.cells * 2 + (0 if batch.target is None else batch.target)
        self.rows += self._count(key)
        for model, decided in enumerate(batch.decisions):
            self.positive[model] += self._count(key, decided == 1)
        if self.num_models == 2:
            self.both += self._count(key, (batch.decisions == 1).all(0))
        if batch.probs is not None and len(key):
            self.has_probs = True
            self._add_probs(key, batch.probs)

    def scores(self, model_cells: Ints) -> tuple[Floats, Ints, Ints]:
        """Return distinct scores in ascending order, with the negatives and positives at each."""
        if self._kept is None:
            counts = self._histogram[model_cells].sum(0, dtype=np.int64)
            return np.arange(BINS) / BINS, counts[0], counts[1]
        keys, probs = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        chosen = np.isin(keys >> 1, model_cells)
        values, index = np.unique(probs[chosen], return_inverse=True)
        counts = np.bincount(index * 2 + (keys[chosen] & 1), minlength=2 * len(values)).reshape(-1, 2)
        return values, counts[:, 0], counts[:, 1]

    @property
    def is_exact(self) -> bool:
        """Whether all scores are kept as they are."""
        return self._kept is not None

    def _add_probs(self, key: Ints, probs: Floats) -> None:
        for model, p in enumerate(probs):
            self.sums[model] += self._sum(key, p)
            self.squares[model] += self._sum(key, p * p)
        if len(probs) == 2:
            self.products += self._sum(key, probs[0] * probs[1])
        first = probs[0]
        place = key * CALIBRATION_BINS + np.minimum(
            (first * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1
        )
        shape = self.bin_rows.shape
        self.bin_rows += np.bincount(place, minlength=self.bin_rows.size).reshape(shape)
        self.bin_sums += np.bincount(place, weights=first, minlength=self.bin_rows.size).reshape(shape)
        if self._kept is not None:
            self._kept.append((key, first))
            if sum(len(kept) for kept, _ in self._kept) <= EXACT_ROWS:
                return
            kept_before, self._kept = self._kept, None
            self._histogram = np.zeros((len(self.names), 2, BINS), np.uint32)
            for kept_key, kept_probs in kept_before:
                self._add_scores(kept_key, kept_probs)
        else:
            self._add_scores(key, first)

    def _add_scores(self, key: Ints, probs: Floats) -> None:
        place = key * BINS + np.minimum((probs * BINS).astype(np.int64), BINS - 1)
        flat = self._histogram.reshape(-1)
        if self._histogram.size <= 1 << 21:
            flat += np.bincount(place, minlength=flat.size).astype(np.uint32)
        else:
            bins, counts = np.unique(place, return_counts=True)
            flat[bins] += counts.astype(np.uint32)

    def _count(self, key: Ints, chosen: NDArray[np.bool_] | None = None) -> Ints:
        keys = key if chosen is None else key[chosen]
        return np.bincount(keys, minlength=2 * len(self.names)).reshape(-1, 2)

    def _sum(self, key: Ints, values: Floats) -> Floats:
        sums: Floats = np.bincount(key, weights=values, minlength=2 * len(self.names)).astype(np.float64)
        return sums.reshape(-1, 2)

    def _grow(self) -> None:
        def grown(array: NDArray[Any], axis: int) -> NDArray[Any]:
            return np.concatenate([array, np.zeros_like(array, shape=_with(array.shape, axis, 1))], axis)

        self.rows, self.both, self.products = (grown(a, 0) for a in (self.rows, self.both, self.products))
        self.positive, self.sums, self.squares = (
            grown(a, 1) for a in (self.positive, self.sums, self.squares)
        )
        self.bin_rows, self.bin_sums = grown(self.bin_rows, 0), grown(self.bin_sums, 0)
        if self._kept is None:
            self._histogram = grown(self._histogram, 0)


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
