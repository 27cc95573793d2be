"""The rates of each group behind the gaps, with intervals, from the counts that the gaps keep."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fairrf_lightning.metrics.gaps import EqualizedOddsGap
from fairrf_lightning.metrics.intervals import wilson_interval


class GroupRate(NamedTuple):
    """One rate of all groups, ``(num_groups,)`` each; NaN for a group without the rows it is about."""

    value: Tensor
    low: Tensor
    high: Tensor
    rows: Tensor


def group_rates(metric: EqualizedOddsGap, level: float = 0.95) -> dict[str, GroupRate]:
    """Return selection rate, true and false positive rate and accuracy of each group, by name.

    Under DDP this is a collective operation: call it on every process.

    Args:
        metric: Has seen the rows, in hard mode.
        level: Confidence level of the intervals (Wilson's).

    >>> import torch
    >>> metric = EqualizedOddsGap()
    >>> preds, groups = torch.tensor([0.9, 0.8, 0.6, 0.7]), torch.tensor([0, 0, 1, 1])
    >>> metric.update(preds, torch.tensor([1, 0, 1, 0]), groups)
    >>> group_rates(metric)["accuracy"].value
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    (positives, negatives), (true, false) = metric.totals()
    rows = positives + negatives
    parts = {
        "selection_rate": (true + false, rows),
        "tpr": (true, positives),
        "fpr": (false, negatives),
        "accuracy": (true + negatives - false, rows),
    }
    return {
        name: GroupRate(hits / count, *wilson_interval(hits, count, level), count)
        for name, (hits, count) in parts.items()
    }
