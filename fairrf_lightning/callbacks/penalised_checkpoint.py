"""A checkpoint of penalised epochs only."""

from __future__ import annotations

from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.run_state import in_pretraining


class PenalisedCheckpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint for a fairness gap: it skips models whose gap means nothing.

    It skips the epochs of pretraining, and models that give every validation row the same decision (where
    ``val_positive_share`` is logged, as FairRFModule does). An untrained model has no gap, so the
    smallest gap alone would choose it. The arguments are those of ModelCheckpoint.
    """

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Return whether this model is among the best ``save_top_k`` that count."""
        share = trainer.callback_metrics.get("val_positive_share")
        constant = share is not None and is_constant(float(share))
        skipped = constant or in_pretraining(trainer, trainer.lightning_module)
        # One decision for all ranks: a module of the user's may log a share of each rank's own rows.
        if not trainer.strategy.reduce_boolean_decision(not skipped, all=False):
            return False
        return super().check_monitor_top_k(trainer, current)
