"""How a callback finds the penalties that it steers."""

from __future__ import annotations

from lightning import Callback, LightningModule

from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


def find_penalties(pl_module: LightningModule, callback: Callback) -> list[RelatedFeaturePenalty]:
    """Return the penalties among the module's submodules; there has to be one."""
    found = [m for m in pl_module.modules() if isinstance(m, RelatedFeaturePenalty)]
    if not found:
        raise InputError(
            f"{type(callback).__name__} found no RelatedFeaturePenalty in "
            f"{type(pl_module).__name__}: use FairRFModule, or give your module one "
            "(self.fairness = RelatedFeaturePenalty({'age': [0], ...})) and add "
            "self.fairness(logits, inputs) to its loss."
        )
    return found
