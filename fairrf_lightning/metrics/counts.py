"""The group fairness gaps by name, and the counts per group and class that they are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.metrics.intervals import RateSample, wilson_interval

Reduction = Literal["gap", "mean_deviation"]
Mode = Literal["hard", "prob"]


class Gap(NamedTuple):
    """A group fairness gap: the largest difference of a rate between groups.

    Args:
        key: Name in logs and files, such as ``"dp_gap"`` in ``val_dp_gap``.
        label: Name in tables, such as ``"dDP"``.
        name: Name in sentences.
        classes: True classes of the rows that each rate is computed on.
    """

    key: str
    label: str
    name: str
    classes: tuple[tuple[int, ...], ...]

    @property
    def needs_labels(self) -> bool:
        """Whether the gap compares rows of one true class."""
        return self.classes != ((0, 1),)


GAPS = {
    gap.key: gap
    for gap in (
        Gap("dp_gap", "dDP", "demographic parity gap", ((0, 1),)),
        Gap("eo_gap", "dEO", "equal opportunity gap", ((1,),)),
        Gap("eodds_gap", "dEOdds", "equalized odds gap", ((1,), (0,))),
    )
}


class GroupRate(NamedTuple):
    """A rate of each group with its interval, ``(..., groups)`` each; NaN for a group without rows."""

    value: Tensor
    low: Tensor
    high: Tensor
    rows: Tensor


@dataclass(frozen=True)
class GroupCounts:
    """Rows, positive decisions and score sums by group and true class, ``(..., groups, 2)`` each.

    Leading dimensions are models. ``rows`` may have fewer of them, where models share their rows.

    Args:
        rows: Number of rows.
        positive: Number of positive decisions.
        score_sum: Sum of the scores (probabilities of the positive class); ``None`` for decisions only.
        score_square_sum: Sum of the squared scores.

    >>> preds, target = torch.tensor([0.9, 0.2, 0.7, 0.8]), torch.tensor([1, 0, 1, 1])
    >>> counts = GroupCounts.of(preds, target, torch.tensor([0, 0, 1, 1]), num_groups=2)
    >>> counts.rates(GAPS["dp_gap"])
    tensor([[0.5000, 1.0000]], dtype=torch.float64)
    >>> (counts + counts).rows.sum()
    tensor(8)
    """

    rows: Tensor
    positive: Tensor
    score_sum: Tensor | None = None
    score_square_sum: Tensor | None = None

    @classmethod
    def of(
        cls, preds: Tensor, target: Tensor, groups: Tensor, num_groups: int, threshold: float = 0.5
    ) -> GroupCounts:
        """Count rows held in tensors.

        Args:
            preds: Probabilities of the positive class, or 0/1 decisions, ``(..., N)``.
            target: True classes 0 or 1, of a shape that broadcasts to that of ``preds``.
            groups: Group ids, likewise; rows with an id of -1 do not count.
            num_groups: Number of groups.
            threshold: Decision threshold.
        """
        if preds.device.type == "cpu" and preds.ndim == target.ndim == groups.ndim == 1:
            return cls._of_row(preds, target, groups, num_groups, threshold)
        cell = torch.add((target > 0.5).long(), groups.long(), alpha=2)
        dtype = torch.float32 if preds.device.type == "mps" else torch.float64  # MPS has no float64.
        scores = preds.detach().to(dtype)
        values = torch.stack([(preds >= threshold).to(dtype), scores, scores.square()], -2)
        cells = (cell.unsqueeze(-1) == torch.arange(2 * num_groups, device=cell.device)).to(dtype)
        if cells.ndim > 2 and cells.shape[-3] == 1:  # models that share their rows: one matrix product
            sums = values.flatten(-3, -2) @ cells.squeeze(-3)
            sums = sums.reshape(*sums.shape[:-2], -1, 3, 2 * num_groups)
        else:
            sums = values @ cells
        positive, score_sum, squares = sums.reshape(*sums.shape[:-1], num_groups, 2).unbind(-3)
        rows = cells.sum(-2).reshape(*cells.shape[:-2], num_groups, 2)
        return cls(rows.long(), positive.long(), score_sum, squares)

    @classmethod
    def _of_row(
        cls, preds: Tensor, target: Tensor, groups: Tensor, num_groups: int, threshold: float
    ) -> GroupCounts:
        """Count the rows of one model on the CPU; NumPy takes a fraction of torch's time per operation."""
        # The first two places are those of the id -1.
        cell = 2 * groups.long().numpy() + (target > 0.5).numpy() + 2
        scores = preds.detach().double().numpy()

        def summed(weights: NDArray[Any] | None) -> Tensor:
            sums = np.bincount(cell, weights, 2 * num_groups + 2)
            return torch.from_numpy(sums[2:].reshape(num_groups, 2))

        decided = (preds >= threshold).numpy()
        return cls(summed(None), summed(decided).long(), summed(scores), summed(scores * scores))

    @classmethod
    def of_classes(cls, probs: Tensor, target: Tensor, groups: Tensor, num_groups: int) -> GroupCounts:
        """Count each class against all others; the leading dimension is the class.

        Args:
            probs: Probabilities of the classes, ``(N, classes)``; the decision is the most probable class.
            target: True classes, from 0, ``(N,)``.
            groups: Group ids, ``(N,)``; rows with an id of -1 do not count.
            num_groups: Number of groups.
        """
        classes = torch.arange(probs.shape[-1], device=probs.device).unsqueeze(-1)
        decided, true = (probs.argmax(-1) == classes).to(probs.dtype), target == classes
        decisions = cls.of(decided, true, groups.expand(true.shape), num_groups)
        scores = cls.of(probs.mT, true, groups.expand(true.shape), num_groups)
        return cls(decisions.rows, decisions.positive, scores.score_sum, scores.score_square_sum)

    @classmethod
    def of_arrays(
        cls,
        decisions: NDArray[Any],
        target: NDArray[Any] | None,
        groups: NDArray[Any],
        num_groups: int,
        probs: NDArray[Any] | None = None,
    ) -> GroupCounts:
        """Count rows held in NumPy arrays (columns of a frame); fast for many groups.

        Args:
            decisions: Decisions 0 or 1 of each model, ``(models, N)``.
            target: True classes 0 or 1, ``(N,)``; ``None`` counts all rows as class 0.
            groups: Group ids, ``(N,)``; all of them count.
            num_groups: Number of groups.
            probs: Probabilities of each model, ``(models, N)``, if there are any.
        """
        cell = groups * 2 + (0 if target is None else target)

        def summed(values: NDArray[Any]) -> Tensor:
            sums = [np.bincount(cell, weights=row, minlength=2 * num_groups) for row in values]
            return torch.from_numpy(np.stack(sums).reshape(-1, num_groups, 2))

        return cls(
            rows=torch.from_numpy(np.bincount(cell, minlength=2 * num_groups).reshape(num_groups, 2)),
            positive=summed(decisions).long(),
            score_sum=None if probs is None else summed(probs),
            score_square_sum=None if probs is None else summed(probs * probs),
        )

    def __add__(self, other: GroupCounts) -> GroupCounts:
        """Return the counts of both sets of rows."""
        if self.score_sum is None or other.score_sum is None:
            return GroupCounts(self.rows + other.rows, self.positive + other.positive)
        pairs = zip(self.fields(), other.fields(), strict=True)
        return GroupCounts(*(mine + theirs for mine, theirs in pairs))

    def pad(self, num_groups: int) -> GroupCounts:
        """Return the counts with empty groups added at the end."""
        added = num_groups - self.rows.shape[-2]
        return GroupCounts(*(torch.nn.functional.pad(field, (0, 0, 0, added)) for field in self.fields()))

    def model(self, number: int) -> GroupCounts:
        """Return the counts of one model of ``(models, groups, 2)`` that share their rows."""
        return GroupCounts(self.rows, *(field[number] for field in self.fields()[1:]))

    def merge_groups(self, members: Sequence[Sequence[int]]) -> GroupCounts:
        """Return the counts of new groups, each the union of some of these."""
        return GroupCounts(
            *(
                torch.stack([field[..., list(part), :].sum(-2) for part in members], -2)
                for field in self.fields()
            )
        )

    def rates(self, gap: Gap, mode: Mode = "hard") -> Tensor:
        """Return the rates that a gap compares, ``(..., conditions, groups)``; NaN without rows."""
        return self.sample(gap, mode).rates

    def gap(self, gap: Gap, reduction: Reduction = "gap", mode: Mode = "hard") -> Tensor:
        """Return a gap of each model, ``(...)``; NaN if a group lacks the rows it needs."""
        return reduce_rates(self.rates(gap, mode), reduction)

    def sample(self, gap: Gap, mode: Mode = "hard") -> RateSample:
        """Return the rates of a gap as a sample that intervals are computed from."""
        rows = by_condition(self.rows, gap).double()
        if mode == "hard":
            return RateSample.of_sums(rows, by_condition(self.positive, gap).double())
        if self.score_sum is None or self.score_square_sum is None:
            raise ValueError("mode 'prob' needs scores; these are counts of decisions only")
        sums, squares = by_condition(self.score_sum, gap), by_condition(self.score_square_sum, gap)
        return RateSample.of_sums(rows, sums.double(), squares.double())

    def group_rates(self, level: float = 0.95) -> dict[str, GroupRate]:
        """Return selection rate, true and false positive rate and accuracy of each group, by name.

        Args:
            level: Confidence level of the intervals (Wilson's).
        """
        (negatives, positives), (false, true) = (
            part.double().unbind(-1) for part in (self.rows, self.positive)
        )
        rows = positives + negatives
        parts = {
            "selection_rate": (true + false, rows),
            "true_positive_rate": (true, positives),
            "false_positive_rate": (false, negatives),
            "accuracy": (true + negatives - false, rows),
        }
        return {
            name: GroupRate(hits / count, *wilson_interval(hits, count, level), count)
            for name, (hits, count) in parts.items()
        }

    def fields(self) -> list[Tensor]:
        """Return the tensors that are known: rows, positive decisions and, with scores, their sums."""
        fields = (self.rows, self.positive, self.score_sum, self.score_square_sum)
        return [field for field in fields if field is not None]


def by_condition(counts: Tensor, gap: Gap) -> Tensor:
    """Sum counts ``(..., groups, 2)`` over the classes of each condition: ``(..., conditions, groups)``."""
    return torch.stack([counts[..., list(classes)].sum(-1) for classes in gap.classes], -2)


def reduce_rates(rates: Tensor, reduction: Reduction) -> Tensor:
    """Return the gap between groups, the largest one of the conditions: ``(..., C, G)`` to ``(...)``."""
    if reduction == "gap":
        return (rates.amax(-1) - rates.amin(-1)).amax(-1)
    return (rates - rates.mean(-1, keepdim=True)).abs().mean(-1).amax(-1)
