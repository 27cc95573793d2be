"""Notices for the reader of a trained model's results, derived from the state of the model and its data.

``fit``, ``test`` and ``validate`` print these sentences last, after the results, and ``fit`` keeps them in
``run.json``, from where ``report`` repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from lightning import LightningModule, Trainer

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.callbacks.lambda_update import COLLAPSED
from fairrf_lightning.callbacks.lookup import penalties_of
from fairrf_lightning.metrics.decisions import SAME_DECISION, is_constant, nearly_constant
from fairrf_lightning.penalty import RelatedFeaturePenalty

Stage = Literal["val", "test"]


class PenaltyUse(NamedTuple):
    """Part that a penalty had in training.

    Args:
        penalty: The penalty.
        steps: Training batches with the penalty on.
        updates: Updates of lambda.
    """

    penalty: RelatedFeaturePenalty
    steps: int
    updates: int

    @property
    def is_vanilla(self) -> bool:
        """Whether the model was to be penalised and was not."""
        return self.penalty.is_wanted and self.steps == 0


def model_notices(
    trainer: Trainer,
    module: LightningModule,
    stage: Stage = "test",
    *,
    fitted: bool = False,
    resumed_at: int | None = None,
) -> list[str]:
    """Return the sentences that matter about a model and its results, the most important first.

    Args:
        trainer: The trainer, after the evaluation that the results are from.
        module: The model, with the weights that were evaluated.
        stage: The evaluation whose metrics count.
        fitted: Whether this process has trained the model, so that the options are those of training.
        resumed_at: The step that the run was resumed at, if it was.
    """
    found = [*_of_decisions(trainer, stage), *_of_the_run(trainer, resumed_at)]
    for use in penalty_uses(trainer, module):
        found += _of_penalty(trainer, use, fitted=fitted)
    found += _of_adversary(module)
    data_notices = getattr(getattr(trainer, "datamodule", None), "notices", None)
    return [*found, *(data_notices() if callable(data_notices) else [])]


def penalty_uses(trainer: Trainer, module: LightningModule) -> list[PenaltyUse]:
    """Return the penalties of a model, with their counters up to the weights at hand."""
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
    """Return the counters that a tested checkpoint has for attached penalties.

    Lightning restores the state of callbacks in ``fit`` only: after it, their counters are the last ones.
    """
    callbacks = getattr(trainer, "callbacks", [])
    attaching = [item for item in callbacks if isinstance(item, LambdaUpdateCallback) and item.penalty]
    if not trainer.ckpt_path or not attaching:
        return {}
    states = trainer.strategy.load_checkpoint(trainer.ckpt_path, weights_only=True).get("callbacks", {})
    counters = {}
    for callback in attaching:
        extra = states.get(callback.state_key, {}).get("penalty", {}).get("_extra_state", {})
        if isinstance(extra, Mapping) and "penalised_steps" in extra:
            counters[id(callback.penalty)] = extra["penalised_steps"], extra["updates"]
    return counters


def _of_decisions(trainer: Trainer, stage: Stage) -> Iterator[str]:
    if (sentence := same_decision(trainer, stage)) is not None:
        yield f"{sentence} Train longer, or lower eta."
    share, balanced = (
        float(trainer.callback_metrics.get(f"{stage}_{name}", torch.nan))
        for name in ("positive_share", "balanced_acc")
    )
    if (sentence := nearly_constant(share, balanced)) is not None:
        yield f"{sentence}. Train longer, or lower eta."


def _of_the_run(trainer: Trainer, resumed_at: int | None) -> Iterator[str]:
    if getattr(trainer, "fast_dev_run", False):
        yield "fast_dev_run tries the code on a few batches: the model is not trained, and nothing is saved."
    if resumed_at == trainer.global_step:
        yield (
            f"nothing was trained: the checkpoint is of a run that had ended, at step {resumed_at}. "
            "To train longer, raise --trainer.max_epochs."
        )


def _of_penalty(trainer: Trainer, use: PenaltyUse, *, fitted: bool) -> Iterator[str]:
    penalty, eta = use.penalty, use.penalty.eta
    if isinstance(eta, torch.Tensor) or not eta:
        return
    if use.is_vanilla:
        limits = _pretraining(trainer) if fitted else ""
        yield (
            f"this is the vanilla model: the penalty (eta {eta:g}) was never on, because all training up to "
            f"this model was pretraining{limits}. Train longer, or pretrain less."
        )
        return
    if len(penalty.weights) == 1:
        return  # lambda is 1, with and without updates
    interval = _interval(trainer) if fitted else None
    if interval and not use.updates:
        yield (
            f"lambda was never updated: the penalty was on for {use.steps} steps, and every_n_steps is "
            f"{interval}. Lower it, or train longer."
        )
    largest = int(penalty.weights.argmax())
    if float(penalty.weights[largest]) > COLLAPSED:
        yield (
            f"lambda is 1 for {penalty.feature_names[largest]!r} and 0 for the other related features, which "
            "are not penalised. Raise beta, or leave lambda fixed (every_n_steps null)."
        )


def _pretraining(trainer: Trainer) -> str:
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, PretrainCallback):
            limits = {name: getattr(callback, name) for name in ("epochs", "steps", "patience")}
            given = ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
            return f" ({given})"
    return ""


def _interval(trainer: Trainer) -> int | None:
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, LambdaUpdateCallback) and callback.interval is not None:
            return callback.interval
    return None


def _of_adversary(module: LightningModule) -> Iterator[str]:
    if getattr(module, "adversary_steps", None) == 0:
        yield (
            "this is the vanilla model: the adversary of ARL never stepped. Train longer, or lower "
            "model.pretrain_steps."
        )
