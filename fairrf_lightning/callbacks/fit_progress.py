"""Counts optimiser steps, and recognises whether a fit starts or continues a run."""

from __future__ import annotations

from collections.abc import Iterable

from lightning import Trainer

from fairrf_lightning.penalty import RelatedFeaturePenalty


class OptimiserSteps:
    """Counts optimiser steps: training batches in which at least one optimiser stepped.

    Several accumulated batches are one step. A batch in which several optimisers step is also one, while
    ``trainer.global_step`` counts each of them.

    Attributes:
        count: Number of steps so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before = 0

    def start_batch(self, trainer: Trainer) -> None:
        """Note where a batch starts."""
        self._before = trainer.global_step

    def end_batch(self, trainer: Trainer) -> bool:
        """Return whether the batch ended with an optimiser step, and count it."""
        stepped = trainer.global_step != self._before
        self.count += stepped
        return stepped


def continues_run(trainer: Trainer) -> bool:
    """Return whether this trainer has trained before: its epochs and steps count on in a second ``fit``."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.ready > 0


def start_fresh(trainer: Trainer, penalties: Iterable[RelatedFeaturePenalty]) -> None:
    """Prepare the penalties for a fit: reset them, unless the trainer continues a run of its own.

    Call this in ``setup``: Lightning restores a checkpoint, with the state of a resumed run, after it.
    """
    for penalty in penalties:
        penalty.train()  # in eval mode, after an interrupted validation, lambda would never be updated
        if not continues_run(trainer):
            penalty.reset()
