"""The table of accuracy and gaps, and the notices that a command ends with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lightning import LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from fairrf_lightning.errors import diverged
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.notices import NEVER_ON, Stage, model_notices, penalty_uses, same_decision

_ROWS = {"acc": "accuracy"} | {gap.key: f"{gap.label:<7} {gap.name}" for gap in GAPS.values()}


def print_results(trainer: Trainer, module: LightningModule, stage: Stage) -> None:
    """Print what the trainer measured last, on rank zero.

    Raises:
        DivergedError: If the predictions are not finite.
    """
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if not math.isfinite(metrics.get(f"{stage}_loss", 0.0)):
        raise diverged(f"{stage}_loss is {metrics[f'{stage}_loss']}")
    if not trainer.is_global_zero or f"{stage}_acc" not in metrics:
        return
    if (sentence := same_decision(trainer, stage)) is not None:
        _print_line(f"note: {sentence}")
    Console().print(_table(metrics, stage))
    for line in _notes(trainer, module, metrics, stage):
        _print_line(line)


def print_notices(
    trainer: Trainer,
    module: LightningModule,
    stage: Stage,
    *,
    fitted: bool = False,
    resumed_at: int | None = None,
) -> list[str]:
    """Print what the reader must know about the model, on rank zero; return the sentences."""
    if not trainer.is_global_zero:
        return []
    notices = model_notices(trainer, module, stage, fitted=fitted, resumed_at=resumed_at)
    for sentence in notices:
        _print_line(f"note: {sentence}")
    return notices


def _print_line(line: str) -> None:
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _table(metrics: dict[str, float], stage: str) -> Table:
    table = Table(title="Test split" if stage == "test" else "Validation split")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="center")
    for key, label in _ROWS.items():
        name = f"{stage}_{key}"
        if name in metrics:
            low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
            interval = "not estimable" if math.isnan(low) else f"{low:.3f} to {high:.3f}"
            table.add_row(label, f"{metrics[name]:.4f}", interval)
    return table


def _notes(trainer: Trainer, module: LightningModule, metrics: dict[str, float], stage: str) -> Iterator[str]:
    data: Any = getattr(trainer, "datamodule", None)
    if f"{stage}_dp_gap" not in metrics:
        yield "Gaps are not reported: the data do not say which group a row belongs to."
    elif hasattr(data, "group_names"):
        yield f"Groups: {', '.join(data.group_names)}. {_quarantine(trainer, data)}"
    penalty: Any = getattr(module, "penalty", None)
    describe: Any = getattr(module, "describe", None)
    if describe is not None:
        yield describe()
    elif penalty is not None:
        weights = zip(penalty.feature_names, penalty.weights.tolist(), strict=True)
        shown = ", ".join(f"{name} {weight:.2f}" for name, weight in weights)
        vanilla = any(use.is_vanilla for use in penalty_uses(trainer, module))
        unused = f"; {NEVER_ON} (vanilla)" if vanilla else ""
        yield f"eta {penalty.eta:g}" + (f"; lambda: {shown}{unused}" if penalty.eta else " (vanilla)")
    if trainer.ckpt_path:
        yield f"Checkpoint: {trainer.ckpt_path}"


def _quarantine(trainer: Trainer, data: Any) -> str:
    if trainer.ckpt_path and not data.is_restored:
        return "The checkpoint does not say which columns it was trained on."
    if data.sensitive in data.trained_columns:
        return f"Trained with: {data.sensitive}."
    if data.expose_sensitive:
        return f"Trained with: {data.sensitive} in the penalty, not as an input."
    absent = [data.sensitive, *(data.related if data.remove_related else ())]
    return f"Trained without: {', '.join(absent)}."
