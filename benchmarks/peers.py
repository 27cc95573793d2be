"""Other libraries' ways to the same purpose, as small as their documentation has them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def column_loop(columns: int, weight: float) -> Loss:
    """Return the penalty of the paper as a loop over the related columns."""

    def penalty(logits: Tensor, inputs: Tensor) -> Tensor:
        probs = logits.sigmoid()
        total = torch.zeros(())
        for column in range(columns):
            values = inputs[:, column]
            total = total + ((values - values.mean()) * (probs - probs.mean())).mean().abs() / columns
        return weight * total

    return penalty


def fairtorch_loss(groups: Tensor, weight: float) -> Loss:
    """Return a demographic parity loss as FairTorch has it: ``alpha * |relu(M mu - c)|^2``.

    ``mu`` holds the mean score of each group and of all rows, and ``M`` takes the differences in both
    directions. Written from the published formula, as the package is of 2021.
    """
    num_groups = int(groups.max()) + 1
    differences = torch.cat([torch.eye(num_groups), -torch.ones(num_groups, 1)], 1)
    constraints = torch.cat([differences, -differences])
    limits = torch.zeros(len(constraints))

    def penalty(logits: Tensor, inputs: Tensor) -> Tensor:
        del inputs
        probs = logits.sigmoid()
        means = [probs[groups == group].mean() for group in range(num_groups)]
        residual = torch.relu(constraints @ torch.stack([*means, probs.mean()]) - limits)
        return weight * residual.square().sum()

    return penalty


def fairret_loss(groups: Tensor, weight: float) -> Loss:
    """Return fairret's norm loss on the positive rates of the groups."""
    from fairret.loss import NormLoss  # noqa: PLC0415 - a peer that may be missing
    from fairret.statistic import PositiveRate  # noqa: PLC0415

    loss, members = NormLoss(PositiveRate()), torch.nn.functional.one_hot(groups.long()).float()

    def penalty(logits: Tensor, inputs: Tensor) -> Tensor:
        del inputs
        value: Tensor = weight * loss(logits.unsqueeze(-1), members)
        return value

    return penalty


def interval_search(penalties: Tensor, beta: float) -> Tensor:
    """Solve for lambda as the paper describes it: try the intervals between sorted penalties in turn.

    Between two neighbouring penalties the features below have weight; the multiplier that makes the weights
    add up to 1 has to lie in the interval.
    """
    ordered = penalties.sort().values
    for size in range(1, len(ordered) + 1):
        multiplier = (2 * beta + ordered[:size].sum()) / size
        if size == len(ordered) or multiplier <= ordered[size]:
            break
    return ((multiplier - penalties) / (2 * beta)).clamp(min=0)


def cvxpy_weights(penalties: np.ndarray, beta: float) -> np.ndarray:
    """Solve for lambda by cvxpy with its default solver."""
    cvxpy: Any = import_module("cvxpy")  # a peer that may be missing; typed in part
    weights = cvxpy.Variable(len(penalties))
    cost = penalties @ weights + beta * cvxpy.sum_squares(weights)
    cvxpy.Problem(cvxpy.Minimize(cost), [weights >= 0, cvxpy.sum(weights) == 1]).solve()
    return np.asarray(weights.value)


def quadprog_weights(penalties: np.ndarray, beta: float) -> np.ndarray:
    """Solve for lambda by quadprog, an active-set method with dense matrices."""
    import quadprog  # noqa: PLC0415 - a peer that may be missing

    size = len(penalties)
    constraints = np.concatenate([np.ones((size, 1)), np.eye(size)], 1)
    bounds = np.concatenate([[1.0], np.zeros(size)])
    return np.asarray(quadprog.solve_qp(2 * beta * np.eye(size), -penalties, constraints, bounds, meq=1)[0])
