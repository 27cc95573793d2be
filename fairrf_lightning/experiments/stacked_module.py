"""Many models as one: the module and the metrics of a single model with leading dimensions.

Models come as ``S`` seeds times ``P`` settings. The settings of a seed share rows, order, initial
weights and dropout masks, just as separate runs with that seed would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairrf_lightning.backbones import LinearSVM
from fairrf_lightning.experiments.stacked_layers import stacked_layers
from fairrf_lightning.methods.arl import Adversary
from fairrf_lightning.metrics.counts import GAPS, GroupCounts, Mode
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.penalty import RelatedFeaturePenalty

_MODES: dict[Mode, str] = {"hard": "", "prob": "_prob"}
_BUILDING = threading.Lock()


class StackedBackbone(nn.Module):
    """``S x P`` networks of linear layers with ReLU and dropout between them.

    Args:
        make: Takes a number of input columns and returns a backbone made of ``nn.Linear``,
            ``nn.ReLU`` and ``nn.Dropout``, such as :class:`~fairrf_lightning.backbones.MLP`.
        seeds: Seed of the initial weights and the dropout masks, ``S`` of them.
        columns: Input columns that each setting sees, boolean ``(P, D)``.
    """

    columns: Tensor

    def __init__(self, make: Callable[[int], nn.Module], seeds: Sequence[int], columns: Tensor) -> None:
        super().__init__()
        self.register_buffer("columns", columns, persistent=False)
        self._sees_all = bool(columns.all())
        built = [_build_as_single_runs_do(make, seed, columns) for seed in seeds]
        self._generators = [generator for _, generator in built]
        example = built[0][0][0]
        self._l2: float | None = example.l2 if isinstance(example, LinearSVM) else None
        self._dropout = max((m.p for m in example.modules() if isinstance(m, nn.Dropout)), default=0.0)
        parameters = [each for models, _ in built for each in map(_parameters, models, columns)]
        shape = (len(seeds), len(columns))
        stacked = [torch.stack(same).view(*shape, *same[0].shape) for same in zip(*parameters, strict=True)]
        self.weights, self.biases = nn.ParameterList(stacked[::2]), nn.ParameterList(stacked[1::2])

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the rows of each seed ``(S, N, D)`` to logits ``(S, P, N)``."""
        weights = self._masked_weights()
        masks = [self._dropout_mask(inputs, weight.shape[-2]) for weight in weights[:-1]]
        return stacked_layers(inputs, weights, list(self.biases), masks)

    def row_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the task loss of each model and row, ``(S, P, N)``, of targets ``(S, 1, N)``."""
        if self._l2 is not None:
            return torch.relu(1 - (2 * target - 1) * logits)
        expanded = target.expand_as(logits)
        return nn.functional.binary_cross_entropy_with_logits(logits, expanded, reduction="none")

    def task_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the task loss of each model, ``(S, P)``."""
        losses = self.row_losses(logits, target).mean(-1)
        if self._l2 is None:
            return losses
        squares: Tensor = self.weights[0].square().sum((-2, -1))
        return losses + self._l2 * squares / self.columns.sum(-1)

    def _masked_weights(self) -> list[Tensor]:
        first, *others = self.weights
        # A column that is masked here has no gradient, so its weights stay at their initial 0.
        return [first if self._sees_all else first * self.columns.unsqueeze(1), *others]

    def _dropout_mask(self, inputs: Tensor, width: int) -> Tensor | None:
        """Return the mask of one hidden layer, ``(S, N, H)``."""
        if not (self.training and self._dropout):
            return None
        # Drawn as `nn.Dropout` draws it for ``(N, H)``, so that the random numbers are the same.
        kept = torch.empty(*inputs.shape[:2], width)
        for of_seed, generator in zip(kept, self._generators, strict=True):
            of_seed.bernoulli_(1 - self._dropout, generator=generator)
        return kept.div_(1 - self._dropout).to(inputs)


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


@torch.no_grad()
def _parameters(model: nn.Module, sees: Tensor) -> list[Tensor]:
    """Return weight ``(H, D)`` and bias ``(H, 1)`` of each layer; columns not seen have a weight of 0."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    first = layers[0].weight.new_zeros(layers[0].out_features, len(sees))
    first[:, sees] = layers[0].weight
    weights = [first, *(layer.weight for layer in layers[1:])]
    return [tensor for w, layer in zip(weights, layers, strict=True) for tensor in (w, layer.bias[:, None])]


class StackedMetrics(EvaluationMetrics):
    """The metrics of a single model for ``(S, P)`` models, and a few more instead of intervals.

    Adds gaps of probabilities (``_prob``) and mean deviations between groups; on test rows also
    ``worst_group_auc``, the smallest area under the ROC curve of a group, NaN if a group has rows of one
    class only.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, num_groups: int = 2, *, auc: bool = False) -> None:
        super().__init__(penalty, num_groups)
        self._with_auc = auc
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(
        self, loss: Tensor, logits: Tensor, related: Tensor, target: Tensor, groups: Tensor | None
    ) -> None:
        """Add a batch: losses ``(S, P)``, logits ``(S, P, N)``, targets and groups ``(S, 1, N)``."""
        super().update(loss, logits, related, target, groups)
        # Only on test rows: sorting the rows of all models in each validation epoch would cost too much.
        if self._with_auc and groups is not None:
            self._rows.append((logits, target.squeeze(1) > 0.5, groups.squeeze(1)))

    def compute(self, *, intervals: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return ``(S, P)`` by name, and ``penalty/<feature>``; never intervals."""
        del intervals
        values, penalties = super().compute(intervals=False)
        return values | self._worst_group_auc(), penalties

    def _gaps(self, counts: GroupCounts, *, intervals: bool) -> dict[str, Tensor]:
        del intervals
        values = {}
        for key, gap in GAPS.items():
            deviation = key.replace("_gap", "_mean_deviation")
            for mode, suffix in _MODES.items():
                values[f"{key}{suffix}"] = counts.gap(gap, "gap", mode)
                values[f"{deviation}{suffix}"] = counts.gap(gap, "mean_deviation", mode)
        return values

    def _worst_group_auc(self) -> dict[str, Tensor]:
        if not self._rows:
            return {}
        seeds = zip(*(torch.cat(column, dim=-1) for column in zip(*self._rows, strict=True)), strict=True)
        worst = []
        for logits, positive, groups in seeds:
            members = [groups == group for group in range(self.num_groups)]
            areas = [auc(logits[:, of & positive], logits[:, of & ~positive]) for of in members]
            worst.append(torch.stack(areas).amin(0))
        return {"worst_group_auc": torch.stack(worst)}

    def reset(self) -> None:
        super().reset()
        self._rows = []


def auc(positives: Tensor, negatives: Tensor) -> Tensor:
    """Return the share of pairs with the positive above the negative, ties counting half, ``(P,)``.

    >>> auc(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]]))
    tensor([0.6250], dtype=torch.float64)
    """
    below, others = positives.contiguous(), negatives.sort(dim=-1).values
    ranks = torch.searchsorted(others, below) + torch.searchsorted(others, below, right=True)
    return ranks.double().mean(-1) / (2 * negatives.shape[-1])


class StackedModule(FairRFModule):
    """``S`` seeds times ``P`` settings; their losses are summed.

    Adam works element by element, so each model takes exactly the steps that it would take alone. Batches
    have ``inputs`` ``(S, N, D)``, ``target`` and ``groups`` ``(S, 1, N)`` and ``related`` ``(S, 1, N, C)``.
    Eta of the penalty has shape ``(S, P)``, and so have the ``results``: the metrics of the last validation
    or test epoch by name.
    """

    backbone: StackedBackbone

    def __init__(
        self, backbone: StackedBackbone, penalty: RelatedFeaturePenalty, num_groups: int, lr: float = 1e-3
    ) -> None:
        super().__init__(backbone=backbone, lr=lr)
        self.penalty = penalty
        self.build_metrics(num_groups)

    def make_metrics(self, stage: str, num_groups: int) -> StackedMetrics:
        """Return the metrics of ``"val"`` or ``"test"``."""
        return StackedMetrics(self.penalty, num_groups, auc=stage == "test")

    def related_of(self, batch: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the columns of the penalty, ``(S, 1, N, C)``: the batch's ``related``, or the inputs."""
        return batch["related"] if "related" in batch else inputs.unsqueeze(1)

    def add_train_losses(self, loss: Tensor, penalty: Tensor) -> None:
        """Do nothing: a stack logs nothing."""

    def log_results(self, values: dict[str, Tensor]) -> None:
        """Do nothing: a stack logs nothing."""

    def check_predictions(self, logits: Tensor) -> None:
        """Do nothing: a diverged model must not end the others; its metrics are NaN."""


class StackedARLModule(StackedModule):
    """``S x P`` models of :class:`~fairrf_lightning.methods.ARLModule`, each with an adversary of its own.

    The penalty is measured, but not part of the loss. ``adversary_lr`` has shape ``(S, P)``; in the first
    ``pretrain_steps`` the learners train alone.
    """

    def __init__(
        self,
        backbone: StackedBackbone,
        penalty: RelatedFeaturePenalty,
        num_groups: int,
        lr: float = 1e-3,
        *,
        adversary_lr: Tensor,
        pretrain_steps: int = 250,
    ) -> None:
        super().__init__(backbone, penalty, num_groups, lr)
        self.adversary = Adversary(backbone.columns.shape[-1], adversary_lr)
        self._pretrain_steps = pretrain_steps

    def training_step(self, batch: Any) -> Tensor:
        inputs, target = batch["inputs"], batch["target"]
        losses = self.backbone.row_losses(self(inputs), target)
        if self.trainer.global_step >= self._pretrain_steps:
            labels = target.squeeze(1)
            self.adversary.ascend(inputs, labels, losses.detach())
            losses = self.adversary.weights(inputs, labels) * losses
        return losses.mean(-1).sum()
