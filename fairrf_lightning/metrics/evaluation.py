"""Metrics of a validation or test epoch: loss, penalty, accuracy and gaps, exact over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairrf_lightning.functional import Moments, merge_moments
from fairrf_lightning.metrics.counts import GAPS, GroupCounts, GroupRate
from fairrf_lightning.metrics.decisions import decision_summary
from fairrf_lightning.metrics.gaps import ExactMetric, GroupCounter, warn_if_empty
from fairrf_lightning.metrics.intervals import gap_interval, wilson_interval
from fairrf_lightning.penalty import RelatedFeaturePenalty


class FeaturePenalties(ExactMetric):
    """``R`` of each related feature over all rows seen, on all ranks.

    The mean of the batches' values would be a different number, because ``|cov|`` is not linear; so the
    moments of the batches are merged. They are kept in float64 (float32 on MPS) in any precision, so
    that a rank without a batch gathers the same dtype as the others.

    Args:
        penalty: The penalty whose features, statistic and rows are measured.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> metric = FeaturePenalties(RelatedFeaturePenalty({"age": [0], "zip": [1]}))
    >>> metric.update(torch.tensor([0.0, 1.0]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    >>> metric.update(torch.tensor([0.0, 1.0]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    >>> metric.compute()
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    higher_is_better = False
    moments: Tensor

    def __init__(self, penalty: RelatedFeaturePenalty, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # In a tuple, so that the penalty's state is not saved a second time with the metric's.
        self._penalty = (penalty,)
        empty = torch.zeros(penalty.moments_shape, dtype=torch.float64)
        self.add_state("moments", empty, dist_reduce_fx=_merge)

    def update(self, probs: Tensor, inputs: Tensor, target: Tensor | None = None) -> None:
        """Add rows: probabilities ``(..., N)`` or ``(..., N, P)``, inputs ``(..., N, D)`` and labels."""
        batch = self._penalty[0].moments(probs, inputs, target).pack()
        before = self.moments
        if before.ndim < batch.ndim:  # now the number of outputs is known
            before = before.unsqueeze(len(self._penalty[0].weights.shape[:-1])).expand_as(batch)
        self.moments = _merge(torch.stack([before, batch.to(before.dtype)]))

    def compute(self) -> Tensor:
        """Return ``R``, ``(..., K)``, NaN for fewer than two rows (torchmetrics squeezes a single value)."""
        found = self._penalty[0].penalties(Moments.unpack(self.moments))
        rows = self.moments[..., 0].reshape(*found.shape[:-1], -1).amax(-1)
        return found.masked_fill((rows < 2).unsqueeze(-1), torch.nan)


class MeanLoss(ExactMetric):
    """Mean loss per row of each model of a stack, summed in float64.

    Args:
        models: Leading dimensions of a stack of models; empty for a single model.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> metric = MeanLoss()
    >>> metric.update(torch.tensor(1.0), rows=3)
    >>> metric.update(torch.tensor(3.0), rows=1)
    >>> metric.compute()
    tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = False
    total: Tensor
    rows: Tensor

    def __init__(self, models: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros(tuple(models), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("rows", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, loss: Tensor, rows: int) -> None:
        """Add a batch whose mean loss per row is ``loss``."""
        self.total = self.total + loss.detach().to(self.total.dtype) * rows
        self.rows = self.rows + rows

    def compute(self) -> Tensor:
        """Return the mean over all rows."""
        return self.total / self.rows


class EvaluationMetrics(nn.Module):
    """Loss, penalty, accuracy and fairness gaps of one evaluation loop.

    A stack of models has the leading dimensions of the penalty's lambda in all inputs and results.

    Args:
        penalty: The penalty of the model under evaluation.
        num_groups: Number of groups of the sensitive attribute.
        num_classes: Number of classes; the gaps of more than two are the largest of all classes.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, num_groups: int = 2, num_classes: int = 2) -> None:
        super().__init__()
        self._penalty = (penalty,)
        self.models = tuple(penalty.weights.shape[:-1])
        self.num_groups = num_groups
        self.loss = MeanLoss(self.models)
        self.related = FeaturePenalties(penalty)
        # Rows of unknown group count for the accuracy.
        self.num_classes = num_classes
        options: Any = {"count_unknown": True, "num_classes": num_classes, "validate_args": False}
        self.counter = GroupCounter(num_groups, models=self.models, **options)
        self._groups_seen = False

    def update(
        self, loss: Tensor, logits: Tensor, related: Tensor, target: Tensor, groups: Tensor | None
    ) -> None:
        """Add a batch.

        Args:
            loss: Mean over the rows, ``(*models)``.
            logits: Predictions, ``(*models, N)``, or ``(N, num_classes)``.
            related: Matrix with the penalty's columns, ``(..., N, D)``.
            target: True classes, ``(..., N)``.
            groups: Group ids, -1 where unknown, ``(..., N)``; ``None`` if the data have no groups.
        """
        self._groups_seen = groups is not None
        rows = target.shape[-1]
        if not rows:  # a rank without rows gets one empty batch
            return
        probs = self._penalty[0].probabilities(logits)
        self.loss.update(loss, rows)
        self.related.update(probs, related, target)
        if groups is None:
            groups = torch.full_like(target, -1, dtype=torch.long)
        elif not self.models:  # a diverged model must not end the others of a stack
            self.counter.check_batch(probs, target, groups)
        self.counter.update(probs, target.long(), groups)

    def compute(self, *, intervals: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the metrics by name, and ``penalty/<feature>``; each of shape ``(*models)``.

        Args:
            intervals: Add ``_low`` and ``_high`` limits of 95 % intervals to accuracy and gaps.
        """
        penalty = self._penalty[0]
        by_feature = self.related.compute().reshape(*self.models, -1)  # torchmetrics squeezes one value
        loss, total = self.loss.compute().reshape(self.models), penalty.total(by_feature)
        values = {"loss": loss, "penalty": total, "objective": loss + penalty.objective(by_feature)}
        counts = self.counter.counts()
        values |= self._accuracy(counts, intervals=intervals)
        if self._groups_seen:
            values |= self._gaps(self._known(counts), intervals=intervals)
        names = (f"penalty/{name}" for name in penalty.feature_names)
        return values, dict(zip(names, by_feature.unbind(-1), strict=True))

    def group_counts(self) -> GroupCounts | None:
        """Return the counts of the known groups; ``None`` without groups, or with more than two classes.

        Under DDP this is a collective operation: call it on every process.
        """
        return self._known(self.counter.counts()) if self._groups_seen and self.num_classes == 2 else None

    def group_rates(self) -> dict[str, GroupRate]:
        """Return the rates of each group, by name; empty if the batches did not carry groups.

        Under DDP this is a collective operation: call it on every process.
        """
        counts = self.group_counts()
        return {} if counts is None else counts.group_rates()

    def _known(self, counts: GroupCounts) -> GroupCounts:
        return GroupCounts(*(field[..., : self.num_groups, :] for field in counts.fields()))

    def _accuracy(self, counts: GroupCounts, *, intervals: bool) -> dict[str, Tensor]:
        if self.num_classes > 2:
            return _class_accuracy(counts, intervals=intervals)
        (negatives, positives), (fp, tp) = (
            part.sum(-2).unbind(-1) for part in (counts.rows, counts.positive)
        )
        values = decision_summary(tp, fp, negatives - fp, positives - tp)
        if intervals:
            right = tp + negatives - fp
            values["acc_low"], values["acc_high"] = wilson_interval(right, negatives + positives)
        return values

    def _gaps(self, counts: GroupCounts, *, intervals: bool) -> dict[str, Tensor]:
        values = {}
        for key, gap in GAPS.items():
            warn_if_empty(key, gap, counts)
            gaps = counts.gap(gap)
            values[key] = gaps if self.num_classes == 2 else gaps.amax(-1)
            if self.num_classes > 2:
                values |= {f"{key}/class_{number}": value for number, value in enumerate(gaps)}
            if intervals:
                sample = GroupCounts(*(field.cpu() for field in counts.fields())).sample(gap)
                sample = sample if self.num_classes == 2 else sample.join_classes()
                values[f"{key}_low"], values[f"{key}_high"] = gap_interval(sample)
        return values

    @torch.no_grad()
    @torch.inference_mode(mode=False)  # states made by Trainer.validate could not be updated in a later fit
    def reset(self) -> None:
        """Forget all batches."""
        self._groups_seen = False
        for metric in (self.loss, self.related, self.counter):
            metric.reset()


def _class_accuracy(counts: GroupCounts, *, intervals: bool) -> dict[str, Tensor]:
    """Return accuracy, balanced accuracy and the share of the most frequent decision, of several classes."""
    rows, decided = (part.sum(-2) for part in (counts.rows, counts.positive))  # (classes, 2)
    true, right = rows[:, 1], decided[:, 1]
    total = true.sum()
    values = {
        "acc": right.sum() / total.clamp(min=1),
        "balanced_acc": (right / true).mean(),
        "largest_share": decided.sum(-1).amax() / total.clamp(min=1),
    }
    if intervals:
        values["acc_low"], values["acc_high"] = wilson_interval(right.sum(), total)
    return values


def _merge(parts: Tensor) -> Tensor:
    return merge_moments(parts).pack()
