"""How well each model of a stack ranks the rows of the group that it ranks worst."""

from __future__ import annotations

import torch
from torch import Tensor


class WorstGroupAUC:
    """The smallest area under the ROC curve of a group, for ``(S, P)`` models.

    A group without rows of both classes has no such area: the result is then NaN.

    Args:
        num_groups: Number of groups of the sensitive attribute; rows of group -1 do not count.
    """

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def reset(self) -> None:
        """Forget all batches."""
        self._batches = []

    def update(self, logits: Tensor, batch: dict[str, Tensor]) -> None:
        """Add the logits ``(S, P, N)`` of a batch, if it knows groups."""
        if "groups" in batch:
            self._batches.append((logits, batch["target"] > 0.5, batch["groups"]))

    def compute(self) -> dict[str, Tensor]:
        """Return ``worst_group_auc``, or nothing if no groups are known."""
        if not self._batches:
            return {}
        logits, positive, groups = (torch.cat(column, dim=-1) for column in zip(*self._batches, strict=True))
        by_seed = [self._worst(*seed) for seed in zip(logits, positive, groups, strict=True)]
        return {"worst_group_auc": torch.stack(by_seed)}

    def _worst(self, logits: Tensor, positive: Tensor, groups: Tensor) -> Tensor:
        chosen = [groups == group for group in range(self._num_groups)]
        return torch.stack([auc(logits[:, of & positive], logits[:, of & ~positive]) for of in chosen]).amin(
            0
        )


def auc(positives: Tensor, negatives: Tensor) -> Tensor:
    """Return how often a positive is above a negative, ties counting half, ``(P,)``.

    >>> auc(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]]))
    tensor([0.6250], dtype=torch.float64)
    """
    below, others = positives.contiguous(), negatives.sort(dim=-1).values
    ranks = torch.searchsorted(others, below) + torch.searchsorted(others, below, right=True)
    return ranks.double().mean(-1) / (2 * negatives.shape[-1])
