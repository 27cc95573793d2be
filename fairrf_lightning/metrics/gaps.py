"""Group fairness gaps as torchmetrics: one number, its interval and the rates behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from fairrf_lightning.metrics.rate_gap import RateGap


class DemographicParityGap(RateGap):
    """Gap between groups in the rate of positive predictions.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        reduction: ``"gap"``, the largest minus the smallest rate, or ``"mean_deviation"``, the mean
            over groups of the distance to the unweighted mean rate (the FairRF authors' measure;
            half the gap with two groups).
        mode: ``"hard"`` for the rate of ``preds >= threshold``, which for 0.5 is ``logit >= 0``;
            ``"prob"`` for the mean of ``preds``.
        threshold: Probability from which on a prediction is positive; unused in prob mode.
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

    _conditions = ("rows",)

    @staticmethod
    def _select(target: Tensor) -> Tensor:
        return torch.ones_like(target, dtype=torch.bool).unsqueeze(0)


class EqualOpportunityGap(RateGap):
    """Gap between groups in the rate of positive predictions among rows with target 1.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        reduction: ``"gap"`` or ``"mean_deviation"``, see :class:`DemographicParityGap`.
        mode: ``"hard"`` or ``"prob"``, see :class:`DemographicParityGap`.
        threshold: Probability from which on a prediction is positive; unused in prob mode.
        validate_args: Check each batch, at the cost of waiting for the GPU.
        kwargs: Options of :class:`torchmetrics.Metric`.

    >>> metric = EqualOpportunityGap()
    >>> preds, groups = torch.tensor([0.9, 0.8, 0.6, 0.1, 0.7]), torch.tensor([0, 0, 1, 1, 1])
    >>> metric(preds, torch.tensor([1, 1, 1, 1, 0]), groups)
    tensor(0.5000, dtype=torch.float64)
    """

    _conditions = ("rows with target 1",)

    @staticmethod
    def _select(target: Tensor) -> Tensor:
        return (target == 1).unsqueeze(0)


class EqualizedOddsGap(RateGap):
    """The larger of the gaps between groups in true and in false positive rates.

    ``rates()`` returns ``(2, num_groups)``: true positive rates, then false positive rates.

    Args:
        num_groups: Number of groups; ids run from 0 to ``num_groups - 1``.
        reduction: ``"gap"`` or ``"mean_deviation"``, see :class:`DemographicParityGap`.
        mode: ``"hard"`` or ``"prob"``, see :class:`DemographicParityGap`.
        threshold: Probability from which on a prediction is positive; unused in prob mode.
        validate_args: Check each batch, at the cost of waiting for the GPU.
        kwargs: Options of :class:`torchmetrics.Metric`.

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

    _conditions = ("rows with target 1", "rows with target 0")

    @staticmethod
    def _select(target: Tensor) -> Tensor:
        return torch.stack([target == 1, target == 0])
