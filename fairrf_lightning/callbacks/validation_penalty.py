"""The penalty of an attached module on its validation rows."""

from __future__ import annotations

import torch
from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import RelatedFeaturePenalty


class ValidationPenalty:
    """The penalty over all rows of a validation epoch, on all ranks.

    There is no value if validation does not call the submodule. If its rows cannot be matched with related
    columns, there is one warning and no value.

    Args:
        penalty: The penalty to measure.
    """

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self._penalty = penalty
        self.start(torch.device("cpu"))

    def start(self, device: torch.device) -> None:
        """Drop all rows, at the start of a fit."""
        self._rows = FeaturePenalties(self._penalty).to(device)
        self._has_rows = self._warned = False
        self.problem = ""  # the first error of this epoch's batches

    @torch.no_grad()
    def update(self, preds: Tensor, inputs: Tensor, target: Tensor | None) -> None:
        """Add the rows of a batch."""
        self._has_rows = True
        self._rows.update(self._penalty.probabilities(preds), inputs, target)

    @torch.no_grad()
    def end_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the penalty and its part of the objective, then drop the rows.

        Under DDP this is a collective operation; a rank may have no rows.
        """
        has_rows = trainer.strategy.reduce_boolean_decision(self._has_rows, all=False)
        sound = trainer.strategy.reduce_boolean_decision(not self.problem, all=True)
        if self.problem and not self._warned:
            self._warned = True
            rank_zero_warn(f"val_penalty is not logged: {self.problem}")
        self._has_rows, self.problem = False, ""
        values = self._rows.compute().reshape(-1) if has_rows and sound else None  # one feature is squeezed
        self._rows.reset()
        return None if values is None else (self._penalty.total(values), self._penalty.objective(values))
