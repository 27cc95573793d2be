"""Many small networks as one: stacked weights, one matrix product a layer and seed.

Models come as ``S`` seeds times ``P`` settings. The settings of a seed share rows, order, initial
weights and dropout masks, just as separate runs with that seed would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fairrf_lightning.backbones import LinearSVM

_BUILDING = threading.Lock()


class StackedBackbone(nn.Module):
    """``S x P`` networks of linear layers with ReLU and dropout between them.

    Args:
        make: Takes a number of input columns and returns a backbone made of ``nn.Linear``,
            ``nn.ReLU`` and ``nn.Dropout``, such as :class:`~fairrf_lightning.backbones.MLP`.
        seeds: Seed of the initial weights and the dropout masks, ``S`` of them.
        columns: Which input columns each setting sees, boolean ``(P, D)``.
    """

    columns: Tensor

    def __init__(self, make: Callable[[int], nn.Module], seeds: Sequence[int], columns: Tensor) -> None:
        super().__init__()
        self.register_buffer("columns", columns, persistent=False)
        self._sees_all = bool(columns.all())
        models = []
        self._generators = []
        for seed in seeds:
            row, generator = _build_as_single_runs_do(make, seed, columns)
            models.append(row)
            self._generators.append(generator)
        example = models[0][0]
        self._l2: float | None = example.l2 if isinstance(example, LinearSVM) else None
        self._dropout = max((m.p for m in example.modules() if isinstance(m, nn.Dropout)), default=0.0)
        layers = [[_linear_layers(model) for model in row] for row in models]
        self.weights = nn.ParameterList(
            _stack(layers, depth, "weight", columns) for depth in range(len(layers[0][0]))
        )
        self.biases = nn.ParameterList(
            _stack(layers, depth, "bias", columns) for depth in range(len(layers[0][0]))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the rows of each seed ``(S, N, D)`` to logits ``(S, P, N)``."""
        # Seed by seed: the activations of one seed's models still fit into the processor's cache.
        weights = zip(*(weight.unbind() for weight in self._masked_weights()), strict=True)
        biases = zip(*(bias.unbind() for bias in self.biases), strict=True)
        seeds = zip(inputs, weights, biases, self._generators, strict=True)
        return torch.stack([self._one_seed(*seed) for seed in seeds])

    def task_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the task loss of each model, ``(S, P)``, for targets ``(S, 1, N)``."""
        return self.row_losses(logits, target).mean(-1) + self._regulariser()

    def row_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the task loss of each model and row, ``(S, P, N)``, without the regulariser."""
        if self._l2 is not None:
            return torch.relu(1 - (2 * target - 1) * logits)
        expanded = target.expand_as(logits)
        return nn.functional.binary_cross_entropy_with_logits(logits, expanded, reduction="none")

    def _regulariser(self) -> Tensor | float:
        if self._l2 is None:
            return 0.0
        squares: Tensor = self.weights[0].square().sum((-2, -1))
        return self._l2 * squares / self.columns.sum(-1)

    def _masked_weights(self) -> list[Tensor]:
        first, *others = self.weights
        # A column that is masked here has no gradient, so its weights stay at their initial 0.
        return [first if self._sees_all else first * self.columns.unsqueeze(1), *others]

    def _one_seed(
        self, inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], generator: torch.Generator
    ) -> Tensor:
        settings = weights[0].shape[0]
        # The settings share the inputs: one product of a tall matrix serves them all.
        hidden = torch.addmm(biases[0].flatten(0, 1), weights[0].flatten(0, 1), inputs.T)
        hidden = hidden.view(settings, -1, len(inputs))
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            hidden = hidden.relu_()
            if self.training and self._dropout:
                hidden = hidden * self._dropout_mask(hidden, generator)
            hidden = torch.baddbmm(bias, weight, hidden)
        return hidden.squeeze(1)

    def _dropout_mask(self, hidden: Tensor, generator: torch.Generator) -> Tensor:
        # Drawn as `nn.Dropout` draws it for ``(N, H)``, so that the random numbers are the same.
        kept = torch.empty(hidden.shape[:0:-1]).bernoulli_(1 - self._dropout, generator=generator)
        return kept.div_(1 - self._dropout).T.to(hidden)


def _build_as_single_runs_do(
    make: Callable[[int], nn.Module], seed: int, columns: Tensor
) -> tuple[list[nn.Module], torch.Generator]:
    generator = torch.Generator()
    models = []
    # Another thread may build a stack at the same time, and the random state is global.
    with _BUILDING, torch.random.fork_rng(devices=[]):
        for sees in columns:
            torch.manual_seed(seed)
            models.append(make(int(sees.sum())))
        generator.set_state(torch.get_rng_state())
    return models, generator


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def _stack(layers: list[list[list[nn.Linear]]], depth: int, name: str, columns: Tensor) -> nn.Parameter:
    rows = [[getattr(model[depth], name).detach() for model in row] for row in layers]
    if name == "bias":
        rows = [[bias.unsqueeze(-1) for bias in row] for row in rows]
    elif depth == 0:
        rows = [[_spread(weight, sees) for weight, sees in zip(row, columns, strict=True)] for row in rows]
    return nn.Parameter(torch.stack([torch.stack(row) for row in rows]))


def _spread(weight: Tensor, sees: Tensor) -> Tensor:
    spread = weight.new_zeros(len(weight), len(sees))
    spread[:, sees] = weight
    return spread
