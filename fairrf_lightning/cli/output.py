"""The output of ``fit``, ``test``, ``validate`` and ``predict``: progress, results, next commands."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fairrf_lightning.callbacks.run_files import run_directory
from fairrf_lightning.checkpoints import own_classes
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import diverged
from fairrf_lightning.messages import install_command, missing_packages, shell_command
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.notices import (
    NEVER_ON,
    NEVER_UPDATED,
    Stage,
    penalty_uses,
    same_decision,
    vanilla_name,
)
from fairrf_lightning.presets import class_path

# Lines of Lightning that say nothing about the run, and advertisements.
_NOISE = (
    "💡",
    "Seed set to",
    "GPU available: False",
    "TPU available: False",
    "HPU available: False",
    "`Trainer.fit` stopped: `max_epochs",
    "Restoring states from",
    "Restored all states from",
    "Loaded model weights from",
)
_LOGGERS = ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed")


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NOISE)


def quieten() -> None:
    """Drop Lightning's advertisements and the warnings that are repeated among the notices."""
    for name in _LOGGERS:
        logger = logging.getLogger(f"lightning.{name}")
        logger.removeFilter(_is_news)
        logger.addFilter(_is_news)
    for message in (NEVER_UPDATED, f".*{NEVER_ON}", "LightningCLI's args parameter"):
        warnings.filterwarnings("ignore", message=message)


class ProgressLine(ProgressBar):
    """One line while a command runs, and one line of results when training ends; a pipe gets the latter."""

    def __init__(self) -> None:
        super().__init__()
        self._is_enabled = True
        self._bar: Progress | None = None
        self._started = 0.0

    def disable(self) -> None:
        self._is_enabled = False

    def enable(self) -> None:
        self._is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_enabled and trainer.is_global_zero:
            print_lines(*_describe_run(trainer, pl_module))
        self._started = time.monotonic()
        self._start(_epoch(trainer), self.total_train_batches * (trainer.max_epochs or -1))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del outputs, batch, batch_idx
        if self._bar is not None:
            done = trainer.fit_loop.epoch_loop.batch_progress.total.completed
            metrics = self._metrics(trainer, pl_module)
            self._show(completed=done, description=_epoch(trainer), metrics=metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()
        if self._is_enabled and trainer.is_global_zero:
            took = str(timedelta(seconds=round(time.monotonic() - self._started))).removeprefix("0:")
            metrics = self._metrics(trainer, pl_module)
            print_lines(f"Trained {_epochs(trainer.current_epoch)} in {took}. {metrics}".rstrip())

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        self._start("testing", sum(trainer.num_test_batches))

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._show()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._start("validating", sum(trainer.num_val_batches))

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._show()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        self._start("predicting", sum(trainer.num_predict_batches))

    on_predict_batch_end = on_test_batch_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        del trainer, pl_module, exception
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        del trainer, pl_module, stage
        self._stop()

    def _start(self, description: str, total: float) -> None:
        self._stop()
        console = Console()
        if not (self._is_enabled and self.trainer.is_global_zero and console.is_terminal):
            return
        metrics = TextColumn("{task.fields[metrics]}", markup=False, table_column=Column(no_wrap=True))
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            metrics,
        )
        self._bar = Progress(*columns, console=console, transient=True, expand=True)
        self._bar.add_task(description, total=total if 0 < total < math.inf else None, metrics="")
        self._bar.start()

    def _show(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], **(changes or {"advance": 1}))

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _metrics(self, trainer: Trainer, pl_module: LightningModule) -> str:
        """Return the metrics of the last validation, or those that another module shows."""
        values = self.get_metrics(trainer, pl_module)
        shown = {name: value for name, value in values.items() if isinstance(value, float)}
        if shown and all(name.startswith("val_") for name in shown):
            return "val: " + " ".join(f"{name[4:]} {value:.3f}" for name, value in shown.items())
        return " ".join(f"{name} {value:.3f}" for name, value in shown.items())


def _epochs(number: int) -> str:
    return f"{number} epoch{'s' * (number != 1)}"


def _epoch(trainer: Trainer) -> str:
    of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
    return f"epoch {trainer.current_epoch + 1}{of}"


def _describe_run(trainer: Trainer, module: LightningModule) -> Iterator[str]:
    """Yield the sizes of the data and of the model."""
    data: Any = getattr(trainer, "datamodule", None)
    if hasattr(data, "split_sizes") and hasattr(data, "feature_names"):
        train, val, test = (f"{data.split_sizes[part]:,}" for part in ("train", "val", "test"))
        rows = f"{train} training, {val} validation and {test} test rows"
        yield f"Data: {rows}; {len(data.feature_names)} inputs."
    name = type(getattr(module, "backbone", module)).__name__
    yield f"Model: {name} with {sum(one.numel() for one in module.parameters()):,} parameters."


def print_results(trainer: Trainer, module: LightningModule, stage: Stage) -> None:
    """Print the metrics of the last evaluation, on rank zero.

    Raises:
        DivergedError: If the predictions are not finite.
    """
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if not math.isfinite(metrics.get(f"{stage}_loss", 0.0)):
        raise diverged(f"{stage}_loss is {metrics[f'{stage}_loss']}")
    if not trainer.is_global_zero or f"{stage}_acc" not in metrics:
        return
    if (sentence := same_decision(trainer, stage)) is not None:
        print_lines(f"note: {sentence}")
    names = {"acc": "accuracy"} | {gap.key: f"{gap.label:<8}{gap.name}" for gap in GAPS.values()}
    rows = []
    for key, name in names.items():
        if (value := metrics.get(f"{stage}_{key}")) is not None:
            low, high = metrics[f"{stage}_{key}_low"], metrics[f"{stage}_{key}_high"]
            rows.append((name, value, "not estimable" if math.isnan(low) else f"{low:.3f} to {high:.3f}"))
    title = f"{'Test' if stage == 'test' else 'Validation'} split{_rows_of(trainer, stage)}"
    print_table(rows, title=title, columns=["", "value", "95 % interval"], missing="nan")
    print_lines(*_explanations(trainer, module, metrics, stage))


def _rows_of(trainer: Trainer, stage: Stage) -> str:
    """Return the number of rows for a title; nothing if only some batches were evaluated."""
    sizes = getattr(getattr(trainer, "datamodule", None), "split_sizes", {})
    limit = trainer.limit_test_batches if stage == "test" else trainer.limit_val_batches
    is_whole = isinstance(limit, float) and limit == 1  # the number 1 is one batch
    return f", {sizes[stage]:,} rows" if is_whole and stage in sizes else ""


def print_next_commands(trainer: Trainer) -> None:
    """Print the commands that usually follow ``fit``; nothing if the run left no files."""
    folder, data = run_directory(trainer), getattr(trainer, "datamodule", None)
    if folder is None or not trainer.ckpt_path or not isinstance(data, TabularDataModule):
        return
    model = trainer.lightning_module
    classes = [{"class_path": class_path(type(part))} for part in (model, data)]
    own = own_classes({"used": [*classes, model.hparams, data.hparams]})
    trust = ("--trust", ",".join(own)) if own else ()
    commands: list[tuple[str | Path, ...]] = [("report", folder, *trust)]
    if data.sensitive is None:
        commands.append(("certify", folder, "--template", folder / "proxies.yaml", *trust))
    else:
        commands.append(("audit", folder, *trust))
    named = ("--config", folder / "config.yaml", "--ckpt_path", trainer.ckpt_path) if own else (folder,)
    commands.append(("predict", *named))
    following = [shell_command(*command) for command in commands]
    if missing_packages():
        following = [*following[1:], f"{install_command('report')} && {following[0]}"]
    print_lines("Next:", *(f"  {command}" for command in following))


def _explanations(
    trainer: Trainer, module: LightningModule, metrics: dict[str, float], stage: str
) -> Iterator[str]:
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
        name = vanilla_name(penalty.eta) if vanilla else f"eta {penalty.eta:g}"
        yield name + (f"; lambda: {shown}" if penalty.eta else " (vanilla)")
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
