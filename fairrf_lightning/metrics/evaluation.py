"""What a validation or test epoch measures, gathered in one place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryStatScores

from fairrf_lightning.metrics.decisions import decision_summary
from fairrf_lightning.metrics.gaps import (
    DemographicParityGap,
    EqualizedOddsGap,
    EqualOpportunityGap,
)
from fairrf_lightning.metrics.group_rates import GroupRate, group_rates
from fairrf_lightning.metrics.intervals import wilson_interval
from fairrf_lightning.metrics.related import FeaturePenalties
from fairrf_lightning.metrics.state_dtype import moving_only
from fairrf_lightning.penalty import RelatedFeaturePenalty


class EvaluationMetrics(nn.Module):
    """Loss, penalty, accuracy and fairness gaps of one evaluation loop, exact over ranks.

    Args:
        penalty: The penalty of the model under evaluation.
        num_groups: Number of groups of the sensitive attribute.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, num_groups: int = 2) -> None:
        super().__init__()
        self._penalty = (penalty,)
        self.loss = MeanMetric()
        self.scores = BinaryStatScores()
        self.related = FeaturePenalties(penalty)
        self.dp_gap = DemographicParityGap(num_groups)
        self.eo_gap = EqualOpportunityGap(num_groups)
        self.eodds_gap = EqualizedOddsGap(num_groups)
        self._groups_seen = False

    def update(
        self, loss: Tensor, logits: Tensor, related: Tensor, target: Tensor, groups: Tensor | None
    ) -> None:
        """Add a batch; ``loss`` is the mean over its rows, ``related`` holds the penalty's columns."""
        self._groups_seen = groups is not None
        if not len(target):  # a rank without rows gets one empty batch
            return
        probs = self._penalty[0].probabilities(logits)
        self.loss.update(loss, weight=len(target))
        self.scores.update((probs >= 0.5).long(), target.long())
        self.related.update(probs, related, target)
        if groups is not None:
            for gap in (self.dp_gap, self.eo_gap, self.eodds_gap):
                gap.update(probs, target.long(), groups)

    def compute(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the scalars by name, and ``penalty/<feature>``."""
        penalty = self._penalty[0]
        by_feature = self.related.compute().reshape(-1)  # torchmetrics squeezes one feature
        loss, total = self.loss.compute(), penalty.total(by_feature)
        objective = loss + penalty.objective(by_feature)
        values = {"loss": loss, "penalty": total, "objective": objective} | self._accuracy()
        if self._groups_seen:
            for name in ("dp_gap", "eo_gap", "eodds_gap"):
                gap = getattr(self, name)
                low, high = gap.interval()
                values |= {name: gap.compute(), f"{name}_low": low, f"{name}_high": high}
        names = (f"penalty/{name}" for name in penalty.feature_names)
        return values, dict(zip(names, by_feature, strict=True))

    def group_rates(self) -> dict[str, GroupRate]:
        """Return the rates of each group, by name; none if the batches did not carry groups.

        Under DDP this is a collective operation: call it on every process.
        """
        return group_rates(self.eodds_gap) if self._groups_seen else {}

    def _accuracy(self) -> dict[str, Tensor]:
        tp, fp, tn, fn, _ = self.scores.compute()
        low, high = wilson_interval(tp + tn, tp + fp + tn + fn)
        return decision_summary(tp, fp, tn, fn) | {"acc_low": low, "acc_high": high}

    @torch.no_grad()
    @torch.inference_mode(mode=False)  # states made by Trainer.validate could not be updated in a later fit
    def reset(self) -> None:
        """Forget all batches."""
        self._groups_seen = False
        for metric in self.children():
            if isinstance(metric, Metric):
                metric.reset()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EvaluationMetrics:  # noqa: FBT001, FBT002 - nn.Module's signature
        super()._apply(moving_only(fn), recurse)  # type: ignore[no-untyped-call]
        return self
