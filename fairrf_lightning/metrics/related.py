"""The penalty ``R`` of each related feature over a whole evaluation set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fairrf_lightning.functional import Moments, merge_moments
from fairrf_lightning.metrics.state_dtype import moving_only
from fairrf_lightning.penalty import RelatedFeaturePenalty


class FeaturePenalties(Metric):
    """``R`` of each related feature over all rows seen, on all ranks.

    A mean of batch values would be another number, because ``|cov|`` is not linear; here the
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

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    moments: Tensor

    def __init__(self, penalty: RelatedFeaturePenalty, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # In a tuple, so that the penalty's state is not saved a second time with the metric's.
        self._penalty = (penalty,)
        shape = (*penalty.weights.shape[:-1], 3 + 3 * len(penalty.columns))
        empty = torch.zeros(shape, dtype=torch.float64)
        self.add_state("moments", empty, dist_reduce_fx=_merge)

    def update(self, probs: Tensor, inputs: Tensor, target: Tensor | None = None) -> None:
        """Add rows: probabilities ``(N,)``, inputs ``(N, D)``, labels ``(N,)``."""
        batch = self._penalty[0].moments(probs, inputs, target).pack()
        self.moments = _merge(torch.stack([self.moments, batch.to(self.moments.dtype)]))

    def compute(self) -> Tensor:
        """Return ``R``, ``(K,)`` (torchmetrics squeezes a single feature to a scalar)."""
        return self._penalty[0].penalties(Moments.unpack(self.moments))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> FeaturePenalties:
        super()._apply(moving_only(fn), exclude_state)
        return self


def _merge(parts: Tensor) -> Tensor:
    return merge_moments(parts).pack()
