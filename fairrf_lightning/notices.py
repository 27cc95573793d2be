"""Notices about a trained model: a penalty that was never on, a lambda that was never updated, and so on.

``fit``, ``test`` and ``validate`` print them after the results, and ``fit`` writes them to ``run.json``. The
callbacks warn with the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.metrics.decisions import SAME_DECISION, is_constant, no_information
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.run_state import penalties_of

Stage = Literal["val", "test"]
NEVER_ON = "the penalty was never on"
NEVER_UPDATED = "lambda was never updated"
_COLLAPSED = 0.999  # above this largest lambda the others count as 0


def vanilla_notice(
    eta: float | Tensor, penalised_steps: int, name: str = "this", pretraining: str = ""
) -> str | None:
    """Return the notice about a model that was meant to be penalised and never was, else ``None``.

    Args:
        eta: Weight of the penalty; of stacked models the largest counts.
        penalised_steps: Training batches with the penalty on.
        name: The model, for example the name of its checkpoint.
        pretraining: The length of pretraining, if it is known.

    >>> print(vanilla_notice(0.3, 0, "last.ckpt"))
    last.ckpt is a vanilla model: the penalty was never on (eta 0.3), because all of its training was \
pretraining. Train longer, or pretrain less.
    >>> vanilla_notice(0.3, 1)
    """
    largest = float(torch.as_tensor(eta).max())
    if largest == 0 or penalised_steps:
        return None
    length = f" ({pretraining})" if pretraining else ""
    return (
        f"{name} is a vanilla model: {NEVER_ON} (eta {largest:g}), because all of its training was "
        f"pretraining{length}. Train longer, or pretrain less."
    )


def vanilla_name(eta: float) -> str:
    """Return the name of a model without a penalty, although ``eta`` may be above 0.

    >>> vanilla_name(0.0), vanilla_name(0.3)
    ('vanilla', 'vanilla (eta 0.3, the penalty was never on)')
    """
    return f"vanilla (eta {eta:g}, {NEVER_ON})" if eta else "vanilla"


def never_updated_notice(steps: int, interval: int, unit: str = "optimiser steps") -> str:
    """Return the notice that training was too short for an update of lambda."""
    return (
        f"{NEVER_UPDATED}: the penalty was on for {steps} {unit}, and every_n_steps is {interval}. "
        "Lower it, or train longer."
    )


def collapse_notice(penalty: RelatedFeaturePenalty) -> str | None:
    """Return the notice about a lambda that has collapsed onto one of several features, else ``None``."""
    largest = int(penalty.weights.argmax())
    if penalty.weights.ndim > 1 or len(penalty.weights) == 1 or penalty.weights[largest] <= _COLLAPSED:
        return None
    beta = "" if penalty.beta is None else f" (now {penalty.beta:g})"
    return (
        f"lambda has collapsed onto {penalty.feature_names[largest]!r}: the other related features are not "
        f"penalised. Raise beta{beta}, or leave lambda fixed (every_n_steps null)."
    )


def outcome_line(
    values: list[tuple[str, float, float]], statistic: str, epochs: int, *, resumed: bool = False
) -> str:
    """Return the line on the penalties of the training rows, and on a rise.

    The ``values`` are the name of each related feature, its R in the first and in the last epoch. A rise is
    not a fault: an untrained model predicts almost the same for all rows, so it starts near 0. In a resumed
    run the first epoch is not that of an untrained model.

    >>> print(outcome_line([("age", 0.0412, 0.0031)], "covariance", 10))
    |covariance| with the prediction, epoch 1 -> 10: age 0.0412 -> 0.0031
    """
    since = " since it was resumed" if resumed else ""
    if epochs == 1:
        rows = ", ".join(f"{name} {last:.4f}" for name, _, last in values)
        return f"|{statistic}| with the prediction, the only epoch{since}: {rows}"
    rows = ", ".join(f"{name} {first:.4f} -> {last:.4f}" for name, first, last in values)
    span = f"first -> last of {epochs} epochs{since}" if resumed else f"epoch 1 -> {epochs}"
    line = f"|{statistic}| with the prediction, {span}: {rows}"
    if not resumed and any(last > first for _, first, last in values):
        line += ". It rises as a model learns; compare with eta 0."
    return line


class PenaltyUse(NamedTuple):
    """A penalty and its part in training, up to the evaluated weights."""

    penalty: RelatedFeaturePenalty
    steps: int  # training batches with the penalty on
    updates: int  # of lambda

    @property
    def is_vanilla(self) -> bool:
        """Whether the model was meant to be penalised and was not."""
        return vanilla_notice(self.penalty.eta, self.steps) is not None


def model_notices(
    trainer: Trainer,
    module: LightningModule,
    stage: Stage = "test",
    *,
    fitted: bool = False,
    resumed_at: int | None = None,
) -> list[str]:
    """Return the notices about a model and its results, the most important first.

    Args:
        trainer: The trainer, after the evaluation that the results are from.
        module: The model, with the weights that were evaluated.
        stage: The evaluation whose metrics count.
        fitted: Whether this process has trained the model, so that the options are those of training.
        resumed_at: The step that the run was resumed at, if it was.
    """
    found = [*_decision_notices(trainer, stage), *_run_notices(trainer, resumed_at)]
    for use in penalty_uses(trainer, module):
        found += _penalty_notices(trainer, use, fitted=fitted)
    # Methods and data modules may have notices of their own.
    for source in (module, getattr(trainer, "datamodule", None)):
        own = getattr(source, "notices", None)
        found += own() if callable(own) else []
    return found


def penalty_uses(trainer: Trainer, module: LightningModule) -> list[PenaltyUse]:
    """Return the penalties of a model, with their counters up to the evaluated weights."""
    attached = _attached_counters(trainer)
    return [
        PenaltyUse(penalty, *attached.get(id(penalty), (penalty.penalised_steps, penalty.updates)))
        for penalty in penalties_of(trainer, module)
    ]


def same_decision(trainer: Trainer, stage: Stage) -> str | None:
    """Return the sentence for a model whose decisions are all the same, else ``None``."""
    share = trainer.callback_metrics.get(f"{stage}_positive_share")
    if share is None or not is_constant(float(share)):
        return None
    return f"{SAME_DECISION}. Every decision is {'positive' if share else 'negative'}."


def _attached_counters(trainer: Trainer) -> dict[int, tuple[int, int]]:
    """Return the counters that a tested checkpoint has for attached penalties, by ``id`` of the penalty.

    Lightning restores the state of callbacks in ``fit`` only, so their own counters are the last ones.
    """
    callbacks: list[Any] = getattr(trainer, "callbacks", [])
    attaching = [c for c in callbacks if isinstance(getattr(c, "penalty", None), RelatedFeaturePenalty)]
    if not trainer.ckpt_path or not attaching:
        return {}
    states = trainer.strategy.load_checkpoint(trainer.ckpt_path, weights_only=True).get("callbacks", {})
    counters = {}
    for callback in attaching:
        extra = states.get(callback.state_key, {}).get("penalty", {}).get("_extra_state", {})
        if isinstance(extra, Mapping) and "penalised_steps" in extra:
            counters[id(callback.penalty)] = extra["penalised_steps"], extra["updates"]
    return counters


def _decision_notices(trainer: Trainer, stage: Stage) -> Iterator[str]:
    share, balanced = (
        float(trainer.callback_metrics.get(f"{stage}_{name}", torch.nan))
        for name in ("positive_share", "balanced_acc")
    )
    if sentence := same_decision(trainer, stage) or no_information(share, balanced):
        yield f"{sentence.rstrip('.')}. Train longer, or lower eta."


def _run_notices(trainer: Trainer, resumed_at: int | None) -> Iterator[str]:
    if getattr(trainer, "fast_dev_run", False):
        yield "fast_dev_run tries the code on a few batches: the model is not trained, and nothing is saved."
    if resumed_at == trainer.global_step:
        yield (
            f"nothing was trained: the checkpoint is of a run that had ended, at step {resumed_at}. "
            "To train longer, raise --trainer.max_epochs."
        )


def _penalty_notices(trainer: Trainer, use: PenaltyUse, *, fitted: bool) -> Iterator[str]:
    penalty = use.penalty
    if not penalty.is_wanted:
        return
    pretraining = _option(trainer, "pretraining") if fitted else None
    if notice := vanilla_notice(penalty.eta, use.steps, pretraining=pretraining or ""):
        yield notice
        return
    interval = _option(trainer, "update_interval") if fitted else None
    if interval and not use.updates and len(penalty.feature_names) > 1:
        yield never_updated_notice(use.steps, interval, "training batches")
    if notice := collapse_notice(penalty):
        yield notice


def _option(trainer: Trainer, name: str) -> Any:
    """Return an option of the pretraining or lambda callback, ``None`` without such a callback."""
    values = (getattr(callback, name, None) for callback in getattr(trainer, "callbacks", []))
    return next((value for value in values if value is not None), None)
