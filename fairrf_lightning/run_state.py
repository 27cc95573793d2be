"""The state of a fit that module, callbacks and notices share: its penalties, its phase, its steps."""

from __future__ import annotations

from collections.abc import Iterable

from lightning import Callback, LightningModule, Trainer

from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


def penalties_of(trainer: Trainer, pl_module: LightningModule) -> list[RelatedFeaturePenalty]:
    """Return the penalties that the module holds or that a callback attaches; the list may be empty."""
    found = [m for m in pl_module.modules() if isinstance(m, RelatedFeaturePenalty)]
    attached = (getattr(other, "penalty", None) for other in trainer.callbacks)  # type: ignore[attr-defined]
    return found + [penalty for penalty in attached if isinstance(penalty, RelatedFeaturePenalty)]


def find_penalties(
    trainer: Trainer, pl_module: LightningModule, callback: Callback
) -> list[RelatedFeaturePenalty]:
    """Return the penalties that a callback controls.

    Raises:
        InputError: If there is no penalty.
    """
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


def in_pretraining(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Return whether a penalty is wanted (``eta > 0``) and no training batch has had it so far.

    Until then the model is a vanilla model, which must not be chosen as a penalised one.
    """
    wanted = [penalty for penalty in penalties_of(trainer, pl_module) if penalty.is_wanted]
    return bool(wanted) and not any(penalty.penalised_steps for penalty in wanted)


def continues_run(trainer: Trainer) -> bool:
    """Return whether this trainer has trained before; a second ``fit`` continues its epochs and steps."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.ready > 0


def start_fresh(trainer: Trainer, penalties: Iterable[RelatedFeaturePenalty]) -> None:
    """Reset the penalties at the start of a fit, unless the trainer continues a run of its own.

    Call this in ``setup``: Lightning restores the state of a resumed run after it.
    """
    for penalty in penalties:
        penalty.train()  # in eval mode, after an interrupted validation, lambda would never be updated
        if not continues_run(trainer):
            penalty.reset()


class OptimiserSteps:
    """Counts training batches in which at least one optimiser stepped.

    Several accumulated batches are one step. A batch in which several optimisers step is also one, while
    ``trainer.global_step`` counts each of them.

    Attributes:
        count: Number of steps so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before = 0

    def start_batch(self, trainer: Trainer) -> None:
        """Call this before each training batch."""
        self._before = trainer.global_step

    def end_batch(self, trainer: Trainer) -> bool:
        """Return whether the batch ended with an optimiser step, and count it."""
        stepped = trainer.global_step != self._before
        self.count += stepped
        return stepped
