"""Related columns that stand beside the inputs: the penalty sees them, the model does not."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError


class RelatedBeside(NamedTuple):
    """Columns for the penalty only, of all rows of a table.

    Args:
        matrix: The columns, ``(N, C)``.
        columns: Column numbers of each feature.
    """

    matrix: Tensor
    columns: dict[str, list[int]]


def sensitive_beside(name: str, groups: Tensor, num_groups: int) -> RelatedBeside:
    """Return S as one 0/1 column a group, as any other category is encoded; id -1 gives zeros.

    >>> sensitive_beside("sex", torch.tensor([0, 1, -1]), 2)
    RelatedBeside(matrix=tensor([[1., 0.],
            [0., 1.],
            [0., 0.]]), columns={'sex': [0, 1]})
    """
    return RelatedBeside(indicators(groups, num_groups), {name: list(range(num_groups))})


def indicators(ids: Tensor, number: int) -> Tensor:
    """Return one 0/1 column an id, ``(N, number)``; id -1 gives zeros."""
    return (ids[:, None] == torch.arange(number)).float()


def check_beside(*, expose_sensitive: bool, remove_related: bool, ksmote: bool) -> None:
    """Refuse options that want different columns beside the inputs."""
    options = {"expose_sensitive": expose_sensitive, "remove_related": remove_related, "ksmote": ksmote}
    if len(given := [name for name, value in options.items() if value]) > 1:
        raise InputError(f"{' and '.join(given)} belong to different methods: give one of them.")
