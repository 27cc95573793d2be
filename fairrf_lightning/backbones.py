"""The paper's three classifiers; each maps inputs ``(N, D)`` to one logit per row, ``(N,)``.

A backbone may have its own loss, a method ``task_loss(logits, target)``; otherwise
:class:`~fairrf_lightning.FairRFModule` uses binary cross entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fairrf_lightning.errors import InputError, did_you_mean


def _flatten_one(outputs: int) -> list[nn.Module]:
    return [nn.Flatten(0)] if outputs == 1 else []


class MLP(nn.Sequential):
    """Multi-layer perceptron with ReLU, the paper's backbone.

    Args:
        n_features: Number of input columns.
        hidden: Sizes of the hidden layers.
        dropout: Dropout after each hidden layer; 0 turns it off (0 in the paper, 0.2 in the authors' code).
        outputs: Number of logits per row: 1 for two classes, otherwise the number of classes.
    """

    def __init__(
        self, n_features: int, hidden: Sequence[int] = (64, 32), dropout: float = 0.1, outputs: int = 1
    ) -> None:
        if any(size < 1 for size in hidden):
            raise InputError(f"hidden = {list(hidden)}: expected layer sizes of 1 or more.")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout = {dropout}: expected 0 (off) or a share below 1.")
        layers: list[nn.Module] = []
        size = n_features
        for next_size in hidden:
            layers += [nn.Linear(size, next_size), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
            size = next_size
        super().__init__(*layers, nn.Linear(size, outputs), *_flatten_one(outputs))


class Linear(nn.Sequential):
    """Logistic regression.

    Args:
        n_features: Number of input columns.
        outputs: Number of logits per row: 1 for two classes, otherwise the number of classes.
    """

    def __init__(self, n_features: int, outputs: int = 1) -> None:
        super().__init__(nn.Linear(n_features, outputs), *_flatten_one(outputs))


class LinearSVM(Linear):
    """Linear support vector machine trained by gradient: mean hinge loss plus ``l2 * mean(w^2)``.

    Its probabilities are the sigmoid of the margin: the ranking and the decisions are those of the SVM,
    but the probabilities are not calibrated.

    Args:
        n_features: Number of input columns.
        l2: Weight of the mean squared coefficient; 0.1 in the authors' code.
    """

    def __init__(self, n_features: int, l2: float = 0.1) -> None:
        if not l2 >= 0:
            raise InputError(f"l2 = {l2}: expected 0 or a positive number.")
        super().__init__(n_features)
        self.l2 = l2

    def task_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean hinge loss of the margins plus the regulariser."""
        hinge = torch.relu(1 - (2 * target - 1) * logits).mean()
        coefficients = self.get_submodule("0").get_parameter("weight")
        return hinge + self.l2 * coefficients.square().mean()


# Short names on the command line and in Python.
BACKBONES: dict[str, type[nn.Module]] = {"mlp": MLP, "linear": Linear, "svm": LinearSVM}
if TYPE_CHECKING:
    BackboneName: TypeAlias = str
    Backbone: TypeAlias = Callable[[int], nn.Module] | BackboneName
else:
    BackboneName = Literal[tuple(BACKBONES)]  # the choices on the command line
    # The command line expands the names first: jsonargparse's errors for a union do not name the option.
    Backbone = Callable[[int], nn.Module]


def find_backbone(backbone: str | Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    """Return the backbone of a short name; a callable is returned unchanged.

    >>> find_backbone("linear")(3)
    Linear(
      (0): Linear(in_features=3, out_features=1, bias=True)
      (1): Flatten(start_dim=0, end_dim=-1)
    )
    """
    if not isinstance(backbone, str):
        return backbone
    if backbone not in BACKBONES:
        raise InputError(f"backbone = {backbone!r}: no such name; {did_you_mean(backbone, BACKBONES)}")
    return BACKBONES[backbone]


def build_backbone(make: Callable[[int], nn.Module], n_features: int, num_classes: int) -> nn.Module:
    """Return a backbone for a number of classes.

    Args:
        make: Takes the number of input columns, and ``outputs`` if it builds its last layer by it.
        n_features: Number of input columns.
        num_classes: Number of classes; two need one logit.

    Raises:
        InputError: If the backbone is for two classes only.

    >>> build_backbone(Linear, 3, num_classes=4)(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """
    if num_classes == 2:
        return make(n_features)
    kind: Callable[..., Any] = make
    if isinstance(make, partial):  # LightningCLI passes the class as an argument
        kind = next((given for given in make.args if isinstance(given, type)), make)
    if isinstance(kind, type) and hasattr(kind, "task_loss"):
        raise InputError(
            f"num_classes = {num_classes}: {kind.__name__} is for two classes; take mlp or linear."
        )
    if "outputs" in signature(kind).parameters:
        options: dict[str, Any] = {"outputs": num_classes}
        return make(n_features, **options)
    return make(n_features)
