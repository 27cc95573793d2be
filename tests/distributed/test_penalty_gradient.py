"""The gradient of the penalty over two ranks is that of all rows in one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fairrf_lightning import RelatedFeaturePenalty
from tests.ranks import run_on_ranks

RELATED = {"age": [0, 1], "housing": [2], "region": [3, 4, 5]}
ETA = 0.6


def gradients_agree(
    ranks: int,  # noqa: ARG001 - run_on_ranks gives it
    *,
    sizes: tuple[int, int],
    offset: float,
    factors: tuple[float, float],
    equal: bool,
) -> float:
    """Compare value, gradient and moments of this rank with float64 formulas on all rows.

    Each rank weights its loss by its factor, as one does by the number of its rows.
    """
    dist.init_process_group("gloo")
    draw, rank = torch.Generator().manual_seed(0), dist.get_rank()
    inputs = torch.randn(sum(sizes), 6, generator=draw, dtype=torch.float64) + offset
    logits = torch.randn(sum(sizes), generator=draw, dtype=torch.float64).requires_grad_()
    probs, weights = logits.sigmoid(), torch.tensor([1, 1, 1, 1, 1, 1]) * ETA / 3
    covariances = ((inputs - inputs.mean(0)) * (probs - probs.mean()).unsqueeze(-1)).mean(0)
    expected = (weights * covariances.abs()).sum()
    (by_all,) = torch.autograd.grad(expected, logits)

    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    penalty, own = RelatedFeaturePenalty(RELATED, eta=ETA), logits.detach()[mine].requires_grad_()
    penalty.equal_ranks = equal
    value = penalty(own, inputs[mine])
    (factors[rank] * value).backward()
    # float32 weights; DDP divides the sum over the ranks by their number.
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(own.grad, sum(factors) * by_all[mine], rtol=1e-5, atol=1e-9)
    found = penalty.pending_penalties()
    assert found is not None
    torch.testing.assert_close(found[1], covariances[2].abs().detach())
    dist.destroy_process_group()
    return float(value)


@pytest.mark.parametrize(
    ("sizes", "offset", "factors", "equal"),
    [
        ((5, 7), 0.0, (1.0, 1.0), True),
        ((0, 6), 1e3, (1.0, 1.0), True),
        ((6, 0), 0.0, (0.5, 0.5), True),
        ((6, 0), 1e3, (1.0, 1.0), False),
        ((4, 12), 0.0, (0.5, 1.5), False),
    ],
)
def test_two_ranks_have_the_gradient_of_all_rows(
    tmp_path: Path, sizes: tuple[int, int], offset: float, factors: tuple[float, float], *, equal: bool
) -> None:
    check = partial(gradients_agree, sizes=sizes, offset=offset, factors=factors, equal=equal)
    run_on_ranks(check, tmp_path, timeout=60)
