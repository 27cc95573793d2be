"""The attached penalty over all rows of a validation epoch."""

from __future__ import annotations

import torch
from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fairrf_lightning.callbacks.dropin.matching import RowMatcher
from fairrf_lightning.callbacks.dropin.prediction import Recorded
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import RelatedFeaturePenalty


class ValidationPenalty:
    """The penalty over all rows of a validation epoch, on all ranks.

    There is no value if validation does not call the submodule. If its rows cannot be matched with related
    columns, there is one warning and no value: training can go on.

    Args:
        penalty: The penalty to measure.
        matcher: Finds the related columns and labels.
        device: Device of the predictions.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, matcher: RowMatcher, device: torch.device) -> None:
        self._penalty = penalty
        self._matcher = matcher
        self._rows = FeaturePenalties(penalty).to(device)
        self._problem = ""  # the first error of this epoch's batches
        self._warned = False

    @torch.no_grad()
    def update(self, calls: list[Recorded]) -> None:
        """Add the rows of a batch; without predictions there is nothing to add."""
        if not calls:
            return
        try:
            preds, inputs, target = self._matcher.match(calls)
            self._rows.update(self._penalty.probabilities(preds), inputs, target)
        except InputError as error:
            self._problem = self._problem or str(error)

    @torch.no_grad()
    def end_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the penalty and its part of the objective, then drop the rows.

        Under DDP this is a collective operation; a rank may have no rows.
        """
        has_rows = trainer.strategy.reduce_boolean_decision(self._rows.update_called, all=False)
        sound = trainer.strategy.reduce_boolean_decision(not self._problem, all=True)
        if self._problem and not self._warned:
            self._warned = True
            rank_zero_warn(f"val_penalty is not logged: {self._problem}")
        self._problem = ""
        values = self._rows.compute().reshape(-1) if has_rows and sound else None  # one feature is squeezed
        self._rows.reset()
        return None if values is None else (self._penalty.total(values), self._penalty.objective(values))
