"""The adversary of ARL: it finds the rows that the learner gets wrong, and weighs them up."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

_LEAST_MEAN = 1e-4  # as in the authors' code: keeps the weights finite when all scores vanish


class Adversary(nn.Module):
    """A logistic function of a row's inputs and label, trained by gradient ascent (Adagrad).

    Its scores ``f`` in (0, 1) weigh the rows by ``1 + n f_i / sum f``, and it ascends the learner's
    weighted loss, whose gradient is written out here: the state is in buffers, not parameters, so that
    the learner's optimiser, gradient clipping and DDP have nothing to do with it. Sums are over the rows
    of all ranks.

    Args:
        n_features: Number of input columns.
        lr: Learning rate. A tensor ``(S, P)`` serves stacked models: inputs ``(S, N, D)``, targets
            ``(S, N)``, and scores, weights and losses ``(S, P, N)``.

    >>> adversary = Adversary(1)
    >>> adversary.weights(torch.zeros(3, 1), torch.tensor([0.0, 1.0, 1.0]))
    tensor([2., 2., 2.])
    """

    coefficients: Tensor
    squares: Tensor

    def __init__(self, n_features: int, lr: float | Tensor = 0.01) -> None:
        super().__init__()
        if isinstance(lr, Tensor):
            self.register_buffer("lr", lr.unsqueeze(-1), persistent=False)
        else:
            self.lr: float | Tensor = lr
        shape = (*torch.as_tensor(lr).shape, n_features + 2)
        self.register_buffer("coefficients", torch.zeros(shape))
        self.register_buffer("squares", torch.full(shape, 0.1))

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the scores ``f`` of the rows, ``(N,)``."""
        design = _design(inputs, target)
        with torch.autocast(design.device.type, enabled=False):
            return (self.coefficients.to(design.dtype) @ design.mT).sigmoid()

    @torch.no_grad()
    def weights(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the weights of the rows, ``(N,)``; their mean is 2."""
        scores: Tensor = self(inputs, target)
        sums = torch.stack([scores.sum(-1), scores.new_full(scores.shape[:-1], scores.shape[-1])], dim=-1)
        total, rows = _sum_over_ranks(sums).chunk(2, dim=-1)
        weights: Tensor = 1 + scores / (total / rows).clamp(min=_LEAST_MEAN)
        return weights

    @torch.no_grad()
    def gradient(self, inputs: Tensor, target: Tensor, losses: Tensor) -> Tensor:
        """Return the gradient of the mean weighted loss, that is of ``sum f_i l_i / sum f``."""
        design = _design(inputs, target)
        scores = self(inputs, target)
        losses, slopes = losses.to(design.dtype), scores * (1 - scores)
        with torch.autocast(design.device.type, enabled=False):
            of_scores = torch.stack([scores.sum(-1), (scores * losses).sum(-1)], dim=-1)
            sums = [of_scores, slopes @ design, (slopes * losses) @ design]
        packed = _sum_over_ranks(torch.cat(sums, dim=-1))
        total, weighted, rest = packed.tensor_split((1, 2), dim=-1)
        slope_sums, loss_slope_sums = rest.chunk(2, dim=-1)
        return (loss_slope_sums - weighted / total * slope_sums) / total

    @torch.no_grad()
    def ascend(self, inputs: Tensor, target: Tensor, losses: Tensor) -> None:
        """Take one step towards larger weights on the rows with larger losses."""
        gradient = self.gradient(inputs, target, losses).to(self.squares.dtype)
        self.squares += gradient.square()
        self.coefficients += self.lr * gradient / self.squares.sqrt()


def _design(inputs: Tensor, target: Tensor) -> Tensor:
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    label = target.to(inputs.dtype).unsqueeze(-1)
    return torch.cat([inputs, label, torch.ones_like(label)], dim=-1)


def _sum_over_ranks(values: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(values)
    return values
