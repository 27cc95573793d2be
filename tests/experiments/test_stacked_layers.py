"""The layers of a stack by convolutions equal those by matrix products and autograd."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fairrf_lightning.experiments.stacked_layers import layers_by_products, stacked_layers

SEEDS, MODELS, ROWS = 2, 3, 40


def layers(sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(SEEDS, MODELS, out, size, generator=generator) for size, out in pairwise(sizes)]
    biases = [torch.randn(SEEDS, MODELS, out, 1, generator=generator) for out in sizes[1:]]
    return [weight.requires_grad_() for weight in weights], [bias.requires_grad_() for bias in biases]


@pytest.mark.parametrize("sizes", [(9, 1), (9, 16, 1), (9, 16, 6, 1), (1, 5, 4, 3, 1)], ids=str)
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("rows", [ROWS, 1, 0])
def test_convolutions_give_the_logits_and_gradients_of_products(
    sizes: tuple[int, ...], rows: int, *, dropout: bool
) -> None:
    weights, biases = layers(sizes)
    inputs = torch.randn(SEEDS, rows, sizes[0])
    masks = [(torch.rand(SEEDS, rows, size) < 0.7) / 0.7 if dropout else None for size in sizes[1:-1]]
    logits = stacked_layers(inputs, weights, biases, masks)
    assert ("Convolutions" in str(logits.grad_fn)) == (len(sizes) > 2 and rows > 0)
    expected = layers_by_products(inputs, weights, biases, masks)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    parameters = [*weights, *biases]
    found = torch.autograd.grad(logits.sin().sum(), parameters)
    wanted = torch.autograd.grad(expected.sin().sum(), parameters)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_what_convolutions_cannot_do_is_left_to_products() -> None:
    weights, biases = layers((4, 3, 1))
    rows = torch.randn(SEEDS, ROWS, 4)
    by_inputs = stacked_layers(rows.clone().requires_grad_(), weights, biases, [None])
    wide_weights, wide_biases = ([each.double() for each in part] for part in (weights, biases))
    wide = stacked_layers(rows.double(), wide_weights, wide_biases, [None])
    for logits in (by_inputs, wide):
        assert "Convolutions" not in str(logits.grad_fn)
    torch.testing.assert_close(by_inputs.double(), wide, rtol=1e-4, atol=1e-5)
