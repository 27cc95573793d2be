"""The penalties over all rows of the first and of the last epoch of training."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.functional import Moments, merge_moments
from fairrf_lightning.notices import outcome_line
from fairrf_lightning.penalty import RelatedFeaturePenalty

_MAX_PARTS = 64


class EpochPenalties:
    """``R`` of all training rows of an epoch, with the penalty on or off.

    Args:
        penalty: The penalty, which hands over the moments of each training batch from now on.

    Attributes:
        first: ``R`` of the first epoch, ``(K,)``; ``None`` before its end.
        last: ``R`` of the last epoch; the first one, if there was no other.
        epochs: Number of epochs with rows.
    """

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self.penalty = penalty
        self.first: Tensor | None = None
        self.last: Tensor | None = None
        self.epochs = 0
        self._parts: list[Moments] = []
        self._merged: Tensor | None = None  # those before, packed
        penalty.observer = self._add

    def _add(self, moments: Moments) -> None:
        self._parts.append(moments)
        if len(self._parts) == _MAX_PARTS:
            self._merge()

    def _merge(self) -> None:
        if self._parts:
            before = [] if self._merged is None else [self._merged.unsqueeze(0)]
            self._merged = merge_moments(torch.cat([*before, Moments.pack_all(self._parts)])).pack()
            self._parts = []

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Measure the rows of an epoch, then drop them."""
        self._merge()
        if self._merged is not None:
            self.last = self.penalty.penalties(Moments.unpack(self._merged))
            self.first = self.last if self.first is None else self.first
            self.epochs += 1
            self._merged = None

    def report(self, trained_epochs: int) -> None:
        """Log ``R`` of the first and of the last epoch.

        Args:
            trained_epochs: Number of epochs of the model, those before a resume included.
        """
        if self.first is None or self.last is None:
            return
        first, last = self.first.tolist(), self.last.tolist()
        values = list(zip(self.penalty.feature_names, first, last, strict=True))
        resumed = trained_epochs > self.epochs
        rank_zero_info(outcome_line(values, self.penalty.statistic, self.epochs, resumed=resumed))

    def remove(self) -> None:
        """Stop measuring."""
        self.penalty.observer = None
