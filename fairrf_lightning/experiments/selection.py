"""Model selection inside a stack: each model keeps the weights of its own best epoch."""

from __future__ import annotations

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from fairrf_lightning.experiments.stacked_module import StackedModule
from fairrf_lightning.run_state import in_pretraining


class KeepBestWeights(Callback):
    """Copies a model's weights and lambda whenever its validation objective is the lowest yet.

    This is what ``ModelCheckpoint(monitor="val_objective")`` does for one model; it does not use S. An
    epoch of pretraining counts only as long as there is no other, except for models without a penalty.
    ``best_epoch`` tells the epochs, ``(S, P)``.
    """

    best_epoch: Tensor

    def __init__(self) -> None:
        self._best: Tensor | None = None
        self._kept: dict[str, Tensor] = {}
        self._pretraining = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the epoch that was just validated with the best one so far."""
        if trainer.state.fn == TrainerFn.FITTING and isinstance(pl_module, StackedModule):
            pretraining = in_pretraining(trainer, pl_module)
            if self._pretraining and not pretraining and self._best is not None:
                vanilla = torch.as_tensor(pl_module.penalty.eta) == 0
                self._best = self._best.where(vanilla, torch.inf)
            self._pretraining = pretraining
            self._keep(pl_module, trainer.current_epoch)

    @torch.no_grad()
    def _keep(self, module: StackedModule, epoch: int) -> None:
        objective = module.results["objective"].nan_to_num(nan=torch.inf)
        current = _weights_of(module)
        if self._best is None:
            self._best = objective
            self._kept = {name: weight.clone() for name, weight in current.items()}
            self.best_epoch = torch.full_like(objective, epoch, dtype=torch.long)
            return
        better = objective < self._best
        self._best = objective.where(better, self._best)
        self.best_epoch = self.best_epoch.where(~better, epoch)
        for name, weight in current.items():
            kept = self._kept[name]
            which = better.view(*better.shape, *[1] * (weight.ndim - better.ndim))
            self._kept[name] = weight.where(which, kept)

    @torch.no_grad()
    def restore(self, module: StackedModule) -> None:
        """Put the kept weights into the module."""
        for name, weight in _weights_of(module).items():
            weight.copy_(self._kept[name])


def _weights_of(module: StackedModule) -> dict[str, Tensor]:
    return dict(module.backbone.named_parameters()) | {"lambda": module.penalty.weights}
