"""Measures the penalty on the validation rows of a module that does not know it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import RelatedFeaturePenalty


class ValidationPenalty:
    """The penalty over all rows of a validation epoch, on all ranks.

    A validation whose rows cannot be matched with related columns is no error, since training can go on:
    there is one warning, and no value. There is no value either if validation does not call the module.

    Args:
        penalty: The penalty to measure.
    """

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self._penalty = penalty
        self._warned = False
        self.start(torch.device("cpu"))

    def start(self, device: torch.device) -> None:
        """Forget all rows, at the start of a fit."""
        self._rows = FeaturePenalties(self._penalty).to(device)
        self._heard = False
        self._problem = ""

    @contextmanager
    def noting_problems(self) -> Iterator[None]:
        """Keep the first thing that is wrong with this epoch's batches, in place of raising it."""
        try:
            yield
        except InputError as error:
            self._problem = self._problem or str(error)

    @torch.no_grad()
    def update(self, preds: Tensor, inputs: Tensor, target: Tensor | None) -> None:
        """Add the rows of a batch."""
        self._heard = True
        self._rows.update(self._penalty.probabilities(preds), inputs, target)

    @torch.no_grad()
    def end_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the penalty and what it adds to the objective, then forget the rows.

        Under DDP this is a collective operation; a rank may have no rows.
        """
        heard = trainer.strategy.reduce_boolean_decision(self._heard, all=False)
        sound = trainer.strategy.reduce_boolean_decision(not self._problem, all=True)
        self._warn()
        self._heard, self._problem = False, ""
        if not (heard and sound):
            self._rows.reset()
            return None
        values = self._rows.compute().reshape(-1)  # torchmetrics squeezes one feature
        self._rows.reset()
        return self._penalty.total(values), self._penalty.objective(values)

    def _warn(self) -> None:
        if self._problem and not self._warned:
            self._warned = True
            rank_zero_warn(f"val_penalty is not logged: {self._problem}")
