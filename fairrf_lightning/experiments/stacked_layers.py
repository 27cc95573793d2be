"""The layers of many networks at once, for one step of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def stacked_layers(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], masks: Sequence[Tensor | None]
) -> Tensor:
    """Return the logits of ``S x P`` networks of linear layers with ReLU between them, ``(S, P, N)``.

    Args:
        inputs: Rows of each seed, ``(S, N, D)``.
        weights: Weights of each layer, ``(S, P, H, D)``; ``H`` of the last layer is 1.
        biases: Biases of each layer, ``(S, P, H, 1)``.
        masks: Dropout mask of each hidden layer, which the settings share, ``(S, N, H)``; or ``None``.
    """
    has_hidden, has_mkldnn = bool(masks), torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    on_cpu = inputs.device.type == "cpu" and inputs.dtype == weights[0].dtype == torch.float32
    if has_hidden and has_mkldnn and on_cpu and inputs.numel() and not inputs.requires_grad:
        options = inputs, masks, torch.is_grad_enabled()
        logits: Tensor = _Convolutions.apply(*options, *weights, *biases)  # type: ignore[no-untyped-call]
        return logits
    return layers_by_products(inputs, weights, biases, masks)


def layers_by_products(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], masks: Sequence[Tensor | None]
) -> Tensor:
    """Return what :func:`stacked_layers` does, by matrix products and autograd: on any device."""
    # The settings share the inputs: one product of a tall matrix serves them all.
    first = weights[0].flatten(1, 2) @ inputs.mT
    hidden = first.view(*weights[0].shape[:3], inputs.shape[1]) + biases[0]
    for weight, bias, kept in zip(weights[1:], biases[1:], masks, strict=True):
        hidden = hidden.relu()
        if kept is not None:
            hidden = hidden * kept.mT.unsqueeze(1).to(hidden)
        hidden = weight @ hidden + bias
    return hidden.squeeze(2)


class _Convolutions(torch.autograd.Function):
    """The layers on the CPU, as convolutions with a backward pass by hand.

    A row is a pixel, and each model is a group of channels. oneDNN computes convolutions with AVX-512 also on
    AMD processors, at twice the rate of the matrix products of MKL. Autograd would make more copies of the
    activations, which are larger than the processor's cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        masks: Sequence[Tensor | None],
        has_backward: bool,  # noqa: FBT001 - apply takes no names
        *parameters: Tensor,
    ) -> Tensor:
        layers = len(masks) + 1
        kept, logits = [], []
        for seed, rows in enumerate(inputs):
            of_seed = [parameter[seed] for parameter in parameters]
            weights, biases = of_seed[:layers], of_seed[layers:]
            layer_inputs = _layer_inputs(rows, weights, biases, _of_seed(masks, seed))
            by_model = layer_inputs[-1].permute(1, 2, 0)
            logits.append(torch.baddbmm(biases[-1], weights[-1], by_model).squeeze(1))
            kept += layer_inputs if has_backward else []
        ctx.masks = masks
        ctx.save_for_backward(*parameters[:layers], *kept)
        return torch.stack(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.masks) + 1
        weights, kept = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        of_weights = [torch.empty_like(weight) for weight in weights]
        of_biases = [weight.new_empty(*weight.shape[:-1], 1) for weight in weights]
        for seed, grad in enumerate(grads[0]):
            layer_inputs = kept[seed * layers : (seed + 1) * layers]
            masks = _of_seed(ctx.masks, seed)
            # That of the last hidden layer, (N, P, H).
            of_hidden = grad.T.contiguous().unsqueeze(-1) * weights[-1][seed].squeeze(1)
            torch.bmm(grad.unsqueeze(1), layer_inputs[-1].transpose(0, 1), out=of_weights[-1][seed])
            torch.sum(grad, -1, out=of_biases[-1][seed].flatten())
            for layer in reversed(range(layers - 1)):
                inputs, hidden = layer_inputs[layer : layer + 2]
                _through_activation(of_hidden, hidden, masks[layer])
                torch.sum(of_hidden, 0, out=of_biases[layer][seed].squeeze(-1))
                of_weights[layer][seed], of_hidden = _through_product(
                    of_hidden, inputs, weights[layer][seed], is_first=layer == 0
                )
        return None, None, None, *of_weights, *of_biases


def _layer_inputs(
    rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], masks: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return what each layer of one seed's models reads: the rows ``(N, 1, D)``, then ``(N, P, H)``."""
    found = [rows.unsqueeze(1)]
    for weight, bias, kept in zip(weights[:-1], biases[:-1], masks, strict=True):
        inputs = found[-1]
        # Dilation has no effect on a kernel of size 1, but torch with one thread takes oneDNN only with it.
        image = nn.functional.conv2d(
            _as_image(inputs), _as_kernel(weight), bias.flatten(), dilation=2, groups=inputs.shape[1]
        )
        hidden = _as_rows(image.relu_(), len(weight))
        found.append(hidden if kept is None else hidden.mul_(kept.unsqueeze(1)))
    return found


def _through_activation(grad: Tensor, hidden: Tensor, kept: Tensor | None) -> None:
    """Change the gradient by the outputs of ReLU and dropout into that by their inputs, in place."""
    # Units that were dropped are 0, as those below the threshold of ReLU are.
    torch.ops.aten.threshold_backward.grad_input(grad, hidden, 0, grad_input=grad)
    if kept is not None:
        grad.mul_(kept.unsqueeze(1))


def _through_product(
    grad: Tensor, inputs: Tensor, weight: Tensor, *, is_first: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient by the weights, and by the inputs unless they are the rows (empty then)."""
    # The order of arguments: bias, stride, padding, dilation, transposed, output padding, groups.
    options = None, (1, 1), (0, 0), (2, 2), False, (0, 0), inputs.shape[1]
    of_image, of_kernel, _ = torch.ops.aten.convolution_backward(
        _as_image(grad), _as_image(inputs), _as_kernel(weight), *options, (not is_first, is_first, False)
    )
    if is_first:
        return of_kernel.view_as(weight), grad.new_empty(0)
    # For the weights of groups a matrix product is faster.
    return grad.permute(1, 2, 0) @ inputs.transpose(0, 1), _as_rows(of_image, inputs.shape[1])


def _as_image(rows: Tensor) -> Tensor:
    """Return rows ``(N, G, H)`` as an image of ``N`` pixels with ``G H`` channels, without a copy."""
    return rows.view(1, len(rows), 1, -1).permute(0, 3, 1, 2)


def _as_rows(image: Tensor, groups: int) -> Tensor:
    return image.permute(0, 2, 3, 1).reshape(image.shape[2], groups, -1)


def _as_kernel(weight: Tensor) -> Tensor:
    return weight.flatten(0, 1)[..., None, None]


def _of_seed(masks: Sequence[Tensor | None], seed: int) -> list[Tensor | None]:
    return [None if kept is None else kept[seed] for kept in masks]
