"""Metric states keep their dtype, whatever the precision of the model and of its batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def moving_only(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return what ``nn.Module._apply`` does to a tensor, without the change of dtype.

    ``Trainer(precision="bf16-true")`` rounds the sums of a metric together with the weights. A state that
    follows the dtype of its batches differs between ranks if one of them has no batch.

    Args:
        fn: The function that ``_apply`` was called with.

    >>> moving_only(lambda tensor: tensor.bfloat16())(torch.ones(1)).dtype
    torch.float32
    """

    def move(tensor: Tensor) -> Tensor:
        device = fn(tensor.new_empty(0, dtype=torch.float32)).device
        if device.type == "mps" and tensor.dtype == torch.float64:  # MPS has no float64.
            tensor = tensor.float()
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return move
