"""Counts of scored rows by cell, a combination of values of the sensitive attributes, batch by batch.

All numbers of an audit follow from these counts. AUC is exact up to ``EXACT_ROWS`` rows. Beyond that, scores
are counted in 2**16 equal bins, and ties within a bin make AUC inexact by at most half the share of
positive-negative pairs in one bin, which is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairrf_lightning.errors import InputError
from fairrf_lightning.load import EvaluatedRows
from fairrf_lightning.metrics.counts import GroupCounts

BINS = 1 << 16
CALIBRATION_BINS = 10
EXACT_ROWS = 1 << 20
_MAX_CELLS = 256
_BOTH = 2  # "model" that accepts if both models do; its score is the product of theirs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cell = tuple[str | None, ...]


class Scores:
    """Decisions and scores of one model, or of two on the same rows, counted by cell and true class.

    Without true labels all rows are counted as class 0.

    Args:
        attributes: Names of the sensitive attributes.
        threshold: Decision threshold.
        source: Description of the model and the rows, for the result.
        compared: Values of an attribute that are compared; all values of an attribute not listed.
        notices: Notices about the models.
        num_classes: Number of classes; of more than two, each is counted against all others.
    """

    def __init__(
        self,
        attributes: Sequence[str],
        *,
        threshold: float = 0.5,
        source: Mapping[str, Any] | None = None,
        compared: Mapping[str, Sequence[str]] | None = None,
        notices: Sequence[str] = (),
        num_classes: int = 2,
    ) -> None:
        self.attributes, self.threshold, self.num_classes = tuple(attributes), threshold, num_classes
        self.source, self.compared, self.notices = dict(source or {}), dict(compared or {}), list(notices)
        self.names: list[Cell] = []
        self.num_models = 1
        self.by_class: list[Scores] = []  # of more than two classes, one against all others
        self.ranks_scores = True  # for AUC and calibration
        self.has_labels = True
        self._numbers: dict[Cell, int] = {}
        self._counts: GroupCounts | None = None
        self._calibration: GroupCounts | None = None
        self._scores = _ScoreCounts()
        if num_classes > 2:
            self.by_class = [Scores(attributes, compared=compared) for _ in range(num_classes)]
            for one in self.by_class:
                one.names, one.ranks_scores = self.names, False  # all have the same cells

    @classmethod
    def of_arrays(
        cls,
        target: NDArray[Any] | None,
        probabilities: NDArray[Any],
        attributes: pd.DataFrame,
        **options: Any,
    ) -> Scores:
        """Count rows in memory.

        Args:
            target: Classes from 0, ``(N,)``, or ``None`` without true labels.
            probabilities: One line per model, ``(models, N)``; for more than two classes
                ``(models, N, classes)``. The decision is then the most probable class.
            attributes: Values of the sensitive attributes, one line per row; missing where unknown. A table
                without columns is one group.
            options: Options of :class:`Scores`.

        Raises:
            InputError: If a probability is not a number from 0 to 1.
        """
        if not ((probabilities >= 0) & (probabilities <= 1)).all():  # NaN fails as well
            raise InputError("probabilities: expected numbers from 0 to 1 for every row and model.")
        sizes = {len(attributes), *probabilities.shape[1:2], *(() if target is None else target.shape)}
        if probabilities.ndim not in (2, 3) or len(sizes) > 1 or not len(attributes):
            raise InputError(
                f"probabilities {probabilities.shape}, {len(attributes)} rows of attributes: expected "
                "(models, rows) or (models, rows, classes), and a true class for each row."
            )
        if target is not None and np.mod(target, 1).any():
            raise InputError("true classes: expected whole numbers from 0 in every row.")
        if several := probabilities.ndim == 3:
            options["num_classes"] = probabilities.shape[2]
        scores = cls([str(name) for name in attributes], **options)
        codes: Ints = np.zeros(len(attributes), np.int64)
        if len(attributes.columns):
            by = attributes.groupby(list(attributes.columns), dropna=False, observed=True)
            codes = by.ngroup().to_numpy().astype(np.int64)
        first = attributes.iloc[np.unique(codes, return_index=True)[1]]
        numbers = [
            scores.cell(tuple(None if pd.isna(value) else str(value) for value in values))
            for values in first.to_numpy(dtype=object)
        ]
        labels = None if target is None else target.astype(np.int64)
        decisions = probabilities.argmax(-1) if several else probabilities >= scores.threshold
        scores.add(np.array(numbers)[codes], decisions, labels, probabilities)
        return scores

    @property
    def counts(self) -> GroupCounts:
        """Counts of each model and cell, ``(models, cells, 2)``; of several classes those of class 0."""
        if self.by_class:
            return self.by_class[0].counts
        if self._counts is None:
            raise ValueError("no rows were added")
        return self._counts.pad(len(self.names))

    @property
    def has_probs(self) -> bool:
        """Whether the models have scores, not decisions only."""
        return self.counts.score_sum is not None

    def both(self) -> GroupCounts:
        """Return the counts of rows that both models accept, and the sums of the product of their scores."""
        return self.counts.model(_BOTH)

    def cell(self, values: Cell) -> int:
        """Return the number of a cell; a combination that was not seen before gets a new one."""
        if values not in self._numbers:
            if len(self.names) == _MAX_CELLS:
                raise InputError(
                    f"the attributes have more than {_MAX_CELLS} combinations of values: name fewer of them, "
                    "or make columns of a few groups, such as age bands."
                )
            self._numbers[values] = len(self.names)
            self.names.append(values)
        return self._numbers[values]

    def add(self, cells: Ints, decisions: NDArray[Any], target: Ints | None, probs: Floats | None) -> None:
        """Add rows.

        Args:
            cells: Number of the cell of each row, ``(N,)``.
            decisions: Decisions of each model, ``(models, N)``.
            target: True classes, or ``None`` without true labels.
            probs: Probabilities of each model, ``(models, N)`` or ``(models, N, classes)``, or ``None``.

        Raises:
            InputError: If a true class is not one of the classes.
        """
        self.num_models, self.has_labels = len(decisions), target is not None
        if target is not None and len(target) and not 0 <= target.min() <= target.max() < self.num_classes:
            raise InputError(f"true classes: expected numbers from 0 to {self.num_classes - 1} in every row.")
        for number, one in enumerate(self.by_class):
            is_class = None if target is None else (target == number).astype(np.int64)
            one.add(cells, decisions == number, is_class, None if probs is None else probs[..., number])
        if self.by_class:
            return
        number = len(self.names)
        if probs is not None and len(cells) and self.ranks_scores:
            first = probs[0]
            bins = np.minimum((first * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
            places, size = cells * CALIBRATION_BINS + bins, number * CALIBRATION_BINS
            part = GroupCounts.of_arrays(decisions[:1], target, places, size, probs[:1])
            self._calibration = part if self._calibration is None else self._calibration.pad(size) + part
            self._scores.add(cells * 2 + (0 if target is None else target), first, number)
        if len(decisions) == _BOTH:
            decisions = np.concatenate([decisions, decisions.astype(bool).all(0, keepdims=True)])
            probs = None if probs is None else np.concatenate([probs, probs.prod(0, keepdims=True)])
        counts = GroupCounts.of_arrays(decisions, target, cells, number, probs)
        self._counts = counts if self._counts is None else self._counts.pad(number) + counts

    def auc(self, cells: Sequence[int]) -> tuple[float, float]:
        """Return the first model's AUC on some cells, and its largest error by binning."""
        negatives, positives = self._scores.by_score(cells)
        pairs = float(negatives.sum()) * float(positives.sum())
        if not pairs:
            return float("nan"), float("nan")
        below = np.cumsum(negatives) - negatives
        area = float((positives * (below + negatives / 2)).sum() / pairs)
        tied = float((positives.astype(float) * negatives).sum() / pairs)
        return area, 0.0 if self._scores.is_exact else tied / 2

    def calibration_error(self, cells: Sequence[int]) -> float:
        """Return the first model's expected calibration error on some cells, over ten equal bins."""
        if self._calibration is None or self._calibration.score_sum is None:
            return float("nan")
        places = np.asarray(cells)[:, None] * CALIBRATION_BINS + np.arange(CALIBRATION_BINS)
        bins = self._calibration.pad(len(self.names) * CALIBRATION_BINS).merge_groups(places.T.tolist())
        rows, sums = bins.rows.numpy(), bins.fields()[2][0].sum(-1).numpy()
        return float(np.abs(sums - rows[:, 1]).sum() / rows.sum()) if rows.sum() else float("nan")


def score_checkpoint(
    rows: EvaluatedRows, against: EvaluatedRows | None = None, threshold: float = 0.5
) -> Scores:
    """Count the predictions of a checkpoint, or of two on the same rows.

    Args:
        rows: Rows with the predictions of the model.
        against: The same rows with the predictions of another model.
        threshold: Decision threshold.

    Raises:
        InputError: If the rows of the two checkpoints differ.
    """
    probabilities, notices = [rows.probabilities.numpy()], rows.run.notices
    if probabilities[0].ndim == 2 and threshold != 0.5:
        raise InputError(no_threshold(threshold, probabilities[0].shape[1]))
    if against is not None:
        if not np.array_equal(rows.rows.numpy(), against.rows.numpy()):
            raise InputError(
                f"--against {against.checkpoint}: the {rows.split} rows of the two checkpoints differ; train "
                "both with the same data and seed."
            )
        probabilities.append(against.probabilities.numpy())
        if probabilities[0].shape != probabilities[1].shape:
            classes = [2 if one.ndim == 1 else one.shape[1] for one in probabilities]
            raise InputError(
                f"--against {against.checkpoint}: it has {classes[1]} classes, but {rows.checkpoint} has "
                f"{classes[0]}; compare models of the same classes."
            )
        notices = [*notices, *against.run.notices]
    other = None if against is None else against.checkpoint
    source = {"kind": "checkpoint", "path": rows.checkpoint, "against": other}
    source |= {"data": rows.data_name, "split": rows.split}
    options: Any = {"threshold": threshold, "source": source, "compared": rows.compared, "notices": notices}
    return Scores.of_arrays(rows.target.numpy(), np.stack(probabilities), rows.attributes, **options)


def no_threshold(threshold: float, num_classes: int) -> str:
    """Return why a decision threshold cannot be used for several classes."""
    return (
        f"--threshold {threshold}: the model has {num_classes} classes and decides for the most probable "
        "one; leave the option out."
    )


class _ScoreCounts:
    """Rows at each score by cell and class: all scores of few rows, a histogram of many."""

    def __init__(self) -> None:
        self._kept: list[tuple[Ints, Floats]] | None = []
        self._histogram: NDArray[np.uint32] = np.zeros((0, 2, BINS), np.uint32)

    @property
    def is_exact(self) -> bool:
        return self._kept is not None

    def add(self, key: Ints, scores: Floats, num_cells: int) -> None:
        """Add rows whose key is twice the number of the cell, plus the class."""
        if self._kept is None:
            self._bin(key, scores, num_cells)
            return
        self._kept.append((key, scores))
        if sum(len(kept) for kept, _ in self._kept) > EXACT_ROWS:
            kept_before, self._kept = self._kept, None
            for kept_key, kept_scores in kept_before:
                self._bin(kept_key, kept_scores, num_cells)

    def by_score(self, cells: Sequence[int]) -> tuple[Ints, Ints]:
        """Return the negatives and the positives of some cells at each distinct score, in ascending order."""
        if self._kept is None:
            known = [cell for cell in cells if cell < len(self._histogram)]
            negatives, positives = self._histogram[known].sum(0, dtype=np.int64)
            return negatives, positives
        keys, scores = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        chosen = np.isin(keys >> 1, np.asarray(cells))
        values, index = np.unique(scores[chosen], return_inverse=True)
        counts = np.bincount(index * 2 + (keys[chosen] & 1), minlength=2 * len(values)).reshape(-1, 2)
        return counts[:, 0], counts[:, 1]

    def _bin(self, key: Ints, scores: Floats, num_cells: int) -> None:
        if added := num_cells - len(self._histogram):
            self._histogram = np.concatenate([self._histogram, np.zeros((added, 2, BINS), np.uint32)])
        place = key * BINS + np.minimum((scores * BINS).astype(np.int64), BINS - 1)
        flat = self._histogram.reshape(-1)
        if self._histogram.size <= 1 << 21:
            flat += np.bincount(place, minlength=flat.size).astype(np.uint32)
        else:
            bins, counts = np.unique(place, return_counts=True)
            flat[bins] += counts.astype(np.uint32)
