"""Brings lambda back from the processes that a strategy has started."""

from __future__ import annotations

from contextlib import suppress

import torch
from lightning import Trainer

from fairrf_lightning.penalty import RelatedFeaturePenalty


class ReturnedLambda:
    """Shared memory for the lambda and the counters of an attached penalty.

    ``ddp_spawn``, ``ddp_fork`` and ``ddp_notebook`` train in processes that they start. Lightning carries
    the weights of the module back to the main process, but nothing of its callbacks. So the main
    process's penalty holds its lambda in memory that is shared with these processes, and rank zero
    writes there when a fit ends.

    Args:
        penalty: The penalty that a callback attaches.
    """

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self._weights = penalty.weights.detach().cpu().clone()
        self._counts = torch.zeros(2, dtype=torch.long)
        with suppress(RuntimeError):  # a system without shared memory starts no processes either
            self._weights.share_memory_()  # type: ignore[no-untyped-call]
            self._counts.share_memory_()  # type: ignore[no-untyped-call]
        penalty.hold_in(self._weights, self._counts)

    def write(self, trainer: Trainer, penalty: RelatedFeaturePenalty) -> None:
        """Write what rank zero has learned."""
        if trainer.is_global_zero:
            penalty.hold_in(self._weights, self._counts)
