"""The gap between groups in the mean of a regression's predictions, with an interval."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.gaps import ExactMetric
from fairrf_lightning.metrics.intervals import RateSample, gap_interval


class MeanGap(ExactMetric):
    """Largest difference between groups of the mean prediction.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> metric = MeanGap()
    >>> metric(torch.tensor([1.0, 2.0, 3.0, 5.0, 6.0, 7.0]), torch.tensor([0, 0, 0, 1, 1, 1]))
    tensor(4., dtype=torch.float64)
    >>> metric.means()
    tensor([2., 6.], dtype=torch.float64)
    >>> print("{:.2f} {:.2f}".format(*metric.interval()))
    1.73 6.27
    """

    higher_is_better = False
    moments: Tensor

    def __init__(self, num_groups: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_groups <= 1:
            raise InputError(f"num_groups is {num_groups}, expected 2 or more: a gap compares groups")
        self.num_groups = num_groups
        # Rows, mean and centred sum of squares of each group: plain sums of squares would cancel.
        self.add_state("moments", torch.zeros(3, num_groups, dtype=torch.float64), dist_reduce_fx=_merged)

    def update(self, preds: Tensor, groups: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Predicted numbers ``(N,)``.
            groups: Group ids 0 to ``num_groups - 1`` of the rows, ``(N,)``, or -1 where the group is unknown.

        Raises:
            InputError: If the shapes differ, a prediction is not finite, or an id is out of range.
        """
        if preds.ndim != 1 or preds.shape != groups.shape:
            shapes = f"{tuple(preds.shape)} and {tuple(groups.shape)}"
            raise InputError(f"preds and groups have shapes {shapes}, expected one and the same shape (N,)")
        if not bool(preds.isfinite().all()):
            raise InputError("preds holds a number that is not finite")
        if groups.is_floating_point() or bool(((groups < -1) | (groups >= self.num_groups)).any()):
            raise InputError(
                f"groups: expected integer ids from 0 to {self.num_groups - 1}, or -1 for unknown"
            )
        values = preds.detach().to(self.moments.dtype)
        ids = torch.arange(self.num_groups, device=groups.device).unsqueeze(-1)
        member = (groups == ids).to(values)
        rows = member.sum(-1)
        mean = member @ values / rows.clamp(min=1)
        squares = (member * (values - mean.unsqueeze(-1)).square()).sum(-1)
        self.moments = _merged(torch.stack([self.moments, torch.stack([rows, mean, squares])]))

    def compute(self) -> Tensor:
        """Return the gap; NaN if a group has no rows."""
        means = _means(self.moments)
        if self.update_called and bool(means.isnan().any()):
            empty = ", ".join(map(str, means.isnan().nonzero().flatten().tolist()))
            rank_zero_warn(f"MeanGap is NaN: there are no rows in group {empty}.", UserWarning)
        return means.max() - means.min() + 0 * means.sum()  # NaN stays NaN

    def means(self) -> Tensor:
        """Return the mean prediction of each group, NaN for a group without rows.

        Under DDP this is a collective operation: call it on every process.
        """
        with self.synced():
            return _means(self.moments)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return a confidence interval for the gap: Welch's for two groups, folded at 0.

        For more groups it inverts a test, as the intervals of the other gaps do.

        Under DDP this is a collective operation: call it on every process.

        Args:
            level: Confidence level between 0 and 1.

        Returns:
            Low and high; both NaN if a group has fewer than two rows.
        """
        with self.synced():
            moments = self.moments
        moments = (moments.cpu() if moments.device.type == "mps" else moments).double()  # MPS has no float64.
        rows, _, squares = moments
        means, spread = _means(moments), torch.where(rows > 1, squares / (rows - 1), torch.nan)
        # Mean scores lie between 0 and 1: these means are moved and scaled to be far from both.
        reach = means.max() - means.min() + 12 * (spread / rows).max().sqrt()
        scale = (4 * reach).clamp(min=1e-100)
        rates = 0.5 + (means - means.mean()) / scale
        sample = RateSample(rates.unsqueeze(0), rows.unsqueeze(0), spread.unsqueeze(0) / scale.square())
        low, high = gap_interval(sample, level)
        return low * scale, high * scale


def _means(moments: Tensor) -> Tensor:
    return moments[1].masked_fill(moments[0] == 0, torch.nan)


def _merged(parts: Tensor) -> Tensor:
    """Merge the moments ``(P, 3, G)`` of several batches or ranks (Chan, Golub and LeVeque 1979)."""
    rows, means, squares = parts.unbind(1)
    total = rows.sum(0)
    mean = (rows * means).sum(0) / total.clamp(min=1)
    return torch.stack([total, mean, (squares + rows * (means - mean).square()).sum(0)])
