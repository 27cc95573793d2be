"""Measures what a penalty achieved: the penalties R of the first and of the last epoch of a fit."""

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
        self._merged: list[Moments] = []  # apart from the others: single batches are packed more quickly
        penalty.observer = self._add

    def _add(self, moments: Moments) -> None:
        self._parts.append(moments)
        if len(self._parts) == _MAX_PARTS:
            self._merged.append(_merge(self._parts))
            self._parts = []
            if len(self._merged) == _MAX_PARTS:
                self._merged = [_merge(self._merged)]

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Measure the rows of an epoch, then drop them."""
        parts = [*self._merged, *([_merge(self._parts)] if self._parts else [])]
        if parts:
            self.last = self.penalty.penalties(_merge(parts))
            self.first = self.last if self.first is None else self.first
            self.epochs += 1
            self._parts, self._merged = [], []

    def report(self) -> None:
        """Log ``R`` of the first and of the last epoch, and the features whose ``R`` did not fall."""
        if self.first is None or self.last is None:
            return
        first, last = self.first.tolist(), self.last.tolist()
        values = list(zip(self.penalty.feature_names, first, last, strict=True))
        eta = float(self.penalty.eta)
        rank_zero_info(outcome_line(values, self.penalty.statistic, self.epochs, eta))

    def remove(self) -> None:
        """Stop measuring."""
        self.penalty.observer = None


def _merge(parts: list[Moments]) -> Moments:
    return merge_moments(Moments.pack_all(parts))
