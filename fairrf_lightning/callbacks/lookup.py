"""How a callback finds the penalties that it steers."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer

from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


def penalties_of(trainer: Trainer, pl_module: LightningModule) -> list[RelatedFeaturePenalty]:
    """Return the penalties that the module holds or that a callback attaches; there may be no penalty yet."""
    found = [m for m in pl_module.modules() if isinstance(m, RelatedFeaturePenalty)]
    attached = (getattr(other, "penalty", None) for other in trainer.callbacks)  # type: ignore[attr-defined]
    return found + [penalty for penalty in attached if isinstance(penalty, RelatedFeaturePenalty)]


def find_penalties(
    trainer: Trainer, pl_module: LightningModule, callback: Callback
) -> list[RelatedFeaturePenalty]:
    """Return the penalties that the module holds or that a callback has attached; there has to be one."""
    found = penalties_of(trainer, pl_module)
    if not found:
        raise InputError(
            f"{type(callback).__name__} found no RelatedFeaturePenalty in "
            f"{type(pl_module).__name__}: attach one without changing the module, "
            "LambdaUpdateCallback(penalty=RelatedFeaturePenalty({'age': [0], ...}), module='net'); or give "
            "your module one (self.fairness = RelatedFeaturePenalty({'age': [0], ...})) and add "
            "self.fairness(logits, inputs) to its loss; or use FairRFModule."
        )
    return found
