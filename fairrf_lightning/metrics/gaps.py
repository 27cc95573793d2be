"""Group fairness gaps as torchmetrics: one number, its interval and the rates behind it.

The states are counts per group and class, summed over batches and processes, so the result depends neither on
the batch size nor on which groups a batch contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from fairrf_lightning.errors import InputError, check_choice
from fairrf_lightning.metrics.counts import GAPS, Gap, GroupCounts, Mode, Reduction, by_condition
from fairrf_lightning.metrics.intervals import gap_interval, mean_deviation_interval


class ExactMetric(Metric):
    """A metric of exact sums, whose states keep their dtype.

    ``Trainer(precision="bf16-true")`` would round the sums of a metric together with the weights. A state
    that follows the dtype of its batches would differ between ranks if one of them has no batch.
    """

    is_differentiable = False
    full_state_update = False

    def synced(self) -> AbstractContextManager[None]:
        """Return a context in which the states are those of all processes."""
        synced: AbstractContextManager[None] = self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        )
        return synced

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> ExactMetric:
        def move(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            if device.type == "mps" and tensor.dtype == torch.float64:  # MPS has no float64.
                tensor = tensor.float()
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, exclude_state)
        return self


class GroupCounter(ExactMetric):
    """Counts of :class:`~fairrf_lightning.metrics.counts.GroupCounts` over batches and processes.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        threshold: Decision threshold.
        models: Leading dimensions of ``preds`` for a stack of models.
        count_unknown: Count rows of unknown group (id -1) as one more group, the last.
        num_classes: Number of classes; of more than two, each is counted against all others.
        validate_args: Check each batch, at the cost of waiting for the GPU.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> counter = GroupCounter(num_groups=2)
    >>> counter.update(torch.tensor([0.9, 0.2, 0.7]), torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]))
    >>> rows, positive = counter.compute()
    >>> positive
    tensor([[0, 1],
            [0, 1]])
    """

    rows: Tensor
    positive: Tensor
    score_sum: Tensor
    score_square_sum: Tensor

    def __init__(
        self,
        num_groups: int,
        threshold: float = 0.5,
        *,
        models: Sequence[int] = (),
        count_unknown: bool = False,
        num_classes: int = 2,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_classes < 2 or (num_classes > 2 and models):
            raise InputError(f"num_classes is {num_classes}, expected 2, or more for a single model")
        self.num_classes = num_classes
        self.num_groups = num_groups
        self.threshold = threshold
        self.models = tuple(models)
        self.count_unknown = count_unknown
        self.validate_args = validate_args
        classes = (num_classes,) if num_classes > 2 else ()
        zeros = torch.zeros(*self.models, *classes, num_groups + count_unknown, 2, dtype=torch.long)
        for name in ("rows", "positive"):
            self.add_state(name, zeros, dist_reduce_fx="sum")
        for name in ("score_sum", "score_square_sum"):
            self.add_state(name, zeros.double(), dist_reduce_fx="sum")
        # A MetricCollection merges metrics whose states agree after the first batch. Metrics with different
        # thresholds may agree by chance.
        self.add_state("decision_threshold", torch.tensor(float(threshold)), dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor, groups: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Probabilities of the positive class, or 0/1 decisions, ``(*models, N)``; of more than two
                classes the probabilities ``(N, num_classes)``.
            target: True classes, from 0, ``(N,)`` or of a shape that broadcasts to that of ``preds``.
            groups: Group ids 0 to ``num_groups - 1``, or -1 where the group is unknown; shape as ``target``.
        """
        if self.validate_args:
            self.check_batch(preds, target, groups)
        if self.count_unknown:
            groups = groups.long().where(groups >= 0, self.num_groups)
        if self.num_classes > 2:
            batch = GroupCounts.of_classes(preds, target, groups, self.rows.shape[-2])
        else:
            batch = GroupCounts.of(preds, target, groups, self.rows.shape[-2], self.threshold)
        counts = GroupCounts(self.rows, self.positive, self.score_sum, self.score_square_sum) + batch
        self.rows, self.positive, self.score_sum, self.score_square_sum = counts.fields()

    def compute(self) -> Any:
        """Return rows and positive decisions by group and class, ``(*models, num_groups, 2)`` each."""
        return self.rows, self.positive

    def counts(self) -> GroupCounts:
        """Return the counts of all processes.

        Under DDP this is a collective operation: call it on every process.
        """
        with self.synced():
            return self._local_counts()

    def _local_counts(self) -> GroupCounts:
        device = "cpu" if self.device.type == "mps" else self.device  # MPS has no float64.
        states = (self.rows, self.positive, self.score_sum, self.score_square_sum)
        return GroupCounts(*(state.to(device) for state in states))

    def check_batch(self, preds: Tensor, target: Tensor, groups: Tensor) -> None:
        """Raise :class:`InputError` if shapes, dtypes or values of a batch are not those of ``update``."""
        if self.num_classes > 2:
            self._check_classes(preds, target)
            preds = preds[:, 0]
        shapes = [tuple(tensor.shape) for tensor in (preds, target, groups)]
        expected = (*self.models, preds.shape[-1] if preds.ndim else 0)
        if shapes[0] != expected or shapes[1] != shapes[2] or not _broadcasts(shapes[1], expected):
            raise InputError(
                f"preds, target and groups have shapes {', '.join(map(str, shapes))}, expected "
                + ("one and the same shape (N,)" if not self.models else f"preds of shape {expected}")
                + ": squeeze or index them first"
            )
        if not preds.numel():
            return
        if groups.is_floating_point():
            raise InputError(
                f"groups has dtype {groups.dtype}, expected integer ids: encode the groups as "
                f"0 to {self.num_groups - 1} and pass groups.long()"
            )
        _check_range("preds", preds, 0, 1, "[0, 1]: apply a sigmoid to logits")
        if self.num_classes == 2:
            _check_range("target", target, 0, 1, "0 or 1: encode the classes so", whole=True)
        _check_range(
            "groups",
            groups,
            -1,
            self.num_groups - 1,
            f"0 to {self.num_groups - 1}, or -1 for unknown: re-encode the ids or raise num_groups",
        )

    def _check_classes(self, preds: Tensor, target: Tensor) -> None:
        last = self.num_classes - 1
        if preds.ndim != 2 or preds.shape[1] != self.num_classes:
            raise InputError(
                f"preds has shape {tuple(preds.shape)}, expected probabilities (N, {self.num_classes})"
            )
        _check_range("preds", preds, 0, 1, "[0, 1]: apply a softmax to logits")
        expected = f"0 to {last}: encode the classes so, or raise num_classes"
        _check_range("target", target, 0, last, expected, whole=True)


class RateGap(GroupCounter):
    """The gap of a row of :data:`~fairrf_lightning.metrics.counts.GAPS`; a subclass names the row."""

    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    gap: ClassVar[Gap]

    def __init__(
        self,
        num_groups: int = 2,
        reduction: Reduction = "gap",
        mode: Mode = "hard",
        threshold: float = 0.5,
        *,
        models: Sequence[int] = (),
        num_classes: int = 2,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if num_groups <= 1:
            raise InputError(f"num_groups is {num_groups}, expected 2 or more: a gap compares groups")
        check_choice("reduction", reduction, get_args(Reduction))
        check_choice("mode", mode, get_args(Mode))
        if not 0 <= threshold <= 1:
            raise InputError(
                f"threshold is {threshold}, expected a probability in [0, 1]: turn a threshold on "
                "logits into one on probabilities by the sigmoid"
            )
        options: Any = {"models": models, "num_classes": num_classes, "validate_args": validate_args}
        super().__init__(num_groups, threshold, **options, **kwargs)
        self.reduction: Reduction = reduction
        self.mode: Mode = mode

    def compute(self) -> Tensor:
        """Return the gap of each model, NaN if a group lacks rows; the largest of all classes."""
        counts = self._local_counts()
        if self.update_called:
            warn_if_empty(type(self).__name__, self.gap, counts)
        gaps = counts.gap(self.gap, self.reduction, self.mode)
        return gaps.amax(-1) if self.num_classes > 2 else gaps

    def by_class(self) -> Tensor:
        """Return the gap of each class against all others, ``(num_classes,)``.

        Under DDP this is a collective operation: call it on every process.

        Raises:
            InputError: If there are two classes, which have the same gap.
        """
        if self.num_classes == 2:
            raise InputError("by_class() is for more than two classes: give num_classes=...")
        return self.counts().gap(self.gap, self.reduction, self.mode)

    def rates(self) -> Tensor:
        """Return the rate of each group, NaN for a group without rows.

        Under DDP this is a collective operation: call it on every process.
        """
        rates = self.counts().rates(self.gap, self.mode)
        return rates.squeeze(-2) if len(self.gap.classes) == 1 else rates

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return a confidence interval for the gap.

        ``intervals.py`` describes the method and ``docs/audit.md`` gives the coverage, for two
        groups exactly. The interval for ``"mean_deviation"`` of three or more groups is conservative.

        Under DDP this is a collective operation: call it on every process.

        Args:
            level: Confidence level between 0 and 1.

        Returns:
            Low and high; both NaN where the gap or a variance cannot be estimated.
        """
        counts = self.counts()
        sample = GroupCounts(*(field.cpu() for field in counts.fields())).sample(self.gap, self.mode)
        if self.num_classes > 2:
            sample = sample.join_classes()
        if self.reduction == "mean_deviation" and self.num_groups > 2:
            return mean_deviation_interval(sample, level)
        low, high = gap_interval(sample, level)
        scale = 0.5 if self.reduction == "mean_deviation" else 1.0
        return low * scale, high * scale

    def plot(self, val: Tensor | list[Tensor] | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Plot one value or several.

        Args:
            val: Results of ``forward`` or ``compute``; the current result by default.
            ax: Matplotlib axes to draw into; new ones by default.
        """
        return self._plot(val, ax)


class DemographicParityGap(RateGap):
    """Gap between groups in the rate of positive predictions.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        reduction: ``"gap"``, the largest minus the smallest rate, or ``"mean_deviation"``, the mean
            over groups of the distance to the unweighted mean rate (the FairRF authors' measure;
            half the gap with two groups).
        mode: ``"hard"`` for the rate of ``preds >= threshold``, which for 0.5 is ``logit >= 0``;
            ``"prob"`` for the mean of ``preds``.
        threshold: Decision threshold; unused in prob mode.
        models: Leading dimensions of ``preds`` for a stack of models.
        num_classes: Number of classes. For more than two, ``preds`` are probabilities ``(N, num_classes)``,
            the decision is the most probable class, and the gap is the largest of all classes, each against
            the others; ``by_class()`` returns all of them.
        validate_args: Check each batch, at the cost of waiting for the GPU. The constructor's
            arguments are always checked.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> metric = DemographicParityGap()
    >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.2, 0.6, 0.1, 0.3, 0.4])
    >>> target = torch.tensor([1, 1, 0, 0, 1, 1, 0, 0])
    >>> groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> metric(preds, target, groups)
    tensor(0.5000, dtype=torch.float64)
    >>> metric.rates()
    tensor([0.7500, 0.2500], dtype=torch.float64)
    >>> metric.update(preds.repeat(24), target.repeat(24), groups.repeat(24))
    >>> low, high = metric.interval(level=0.9)
    >>> print(f"{low:.2f} {high:.2f}")
    0.39 0.59
    """

    gap = GAPS["dp_gap"]


class EqualOpportunityGap(RateGap):
    """Gap between groups in the rate of positive predictions among rows with target 1.

    The arguments are those of :class:`DemographicParityGap`.

    >>> metric = EqualOpportunityGap()
    >>> preds, groups = torch.tensor([0.9, 0.8, 0.6, 0.1, 0.7]), torch.tensor([0, 0, 1, 1, 1])
    >>> metric(preds, torch.tensor([1, 1, 1, 1, 0]), groups)
    tensor(0.5000, dtype=torch.float64)
    """

    gap = GAPS["eo_gap"]


class EqualizedOddsGap(RateGap):
    """The larger of the gaps between groups in true and in false positive rates.

    ``rates()`` returns ``(2, num_groups)``: true positive rates, then false positive rates.

    The arguments are those of :class:`DemographicParityGap`.

    >>> metric = EqualizedOddsGap()
    >>> preds, groups = torch.tensor([0.9, 0.8, 0.6, 0.7]), torch.tensor([0, 0, 1, 1])
    >>> metric.update(preds, torch.tensor([1, 0, 1, 0]), groups)
    >>> metric.update(torch.tensor([0.1]), torch.tensor([0]), torch.tensor([1]))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    >>> metric.rates()
    tensor([[1.0000, 1.0000],
            [1.0000, 0.5000]], dtype=torch.float64)
    """

    gap = GAPS["eodds_gap"]


def warn_if_empty(name: str, gap: Gap, counts: GroupCounts) -> None:
    """Warn that a gap is NaN because a group lacks the rows it needs."""
    conditions = {(0, 1): "rows", (1,): "rows with target 1", (0,): "rows with target 0"}
    rows = by_condition(counts.rows, gap).reshape(-1, len(gap.classes), counts.rows.shape[-2]).amin(0)
    missing = [
        f"{conditions[classes]} in group {group}"
        for classes, row in zip(gap.classes, rows.tolist(), strict=True)
        for group, count in enumerate(row)
        if not count
    ]
    if missing:
        rank_zero_warn(
            f"{name} is NaN: there are no {', no '.join(missing)}. "
            "Add such rows, or lower num_groups if the group does not exist.",
            UserWarning,
        )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether rows of a shape serve models of another; the number of rows is the same."""
    if len(shape) > len(to) or shape[-1:] != to[-1:]:
        return False
    return all(size in (1, wanted) for size, wanted in zip(shape[::-1], to[::-1], strict=False))


def _check_range(
    name: str, values: Tensor, low: int, high: int, expected: str, *, whole: bool = False
) -> None:
    if not values.numel():
        return
    smallest, largest = values.aminmax()  # one pass; NaN is both
    if not (smallest.item() >= low and largest.item() <= high):
        wrong = ~((values >= low) & (values <= high))
    elif whole and values.is_floating_point():
        wrong = values != values.round()
    else:
        return
    if wrong.any():
        raise InputError(f"{name} holds {values[wrong][0].item()}, expected {expected}")
