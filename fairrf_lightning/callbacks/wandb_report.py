"""Fairness at a glance on the W&B page of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from fairrf_lightning.callbacks.checkpointing import chosen_by
from fairrf_lightning.metrics.counts import GroupRate
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.tracking.access import first_line
from fairrf_lightning.tracking.axes import (
    define_metrics,
    evaluation_names,
    feature_names,
    rate_name,
)
from fairrf_lightning.tracking.charts import group_charts, pareto_charts, result_tables
from fairrf_lightning.tracking.run_config import run_config

if TYPE_CHECKING:
    from wandb import Run


class WandbReport(Callback):
    """Adds to a W&B run what a reader looks for first; without a WandbLogger it does nothing.

    - Config: data set, columns, related features, whether S is an input, the options of the method.
    - Axes and summary values: metrics of an epoch on the epoch's axis; of ``val_acc`` the largest, of the
      losses the smallest, of all else the last value.
    - Each validation and test: selection rate, true and false positive rate and accuracy of each group, as
      ``val_true_positive_rate/<group>``.
    - After training: accuracy against each gap over the epochs (``pareto/eo_gap``), and in the summary the
      values at the checkpoint that was chosen (``chosen/val_acc``).
    - After testing: tables with intervals (``test/results``, ``test/groups``, ``test/features``), and bars
      of the groups' rates.

    The command line adds it to every run with a WandbLogger.
    """

    def __init__(self) -> None:
        self._history: list[dict[str, float]] = []
        self._rates: dict[str, GroupRate] = {}
        self._given_up = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Describe the run and its axes."""
        self._history = []
        self._describe(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Describe the run, which may be one of testing only."""
        self._rates = {}
        self._describe(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the groups' rates, before the module forgets them."""
        if not trainer.sanity_checking:
            self._log_rates(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the groups' rates, before the module forgets them."""
        self._log_rates(trainer, pl_module, "test")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note this epoch's point for the Pareto chart."""
        del pl_module
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            metrics = _validation_metrics(trainer)
            if "val_acc" in metrics:
                self._history.append({"epoch": trainer.current_epoch} | metrics)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw accuracy against the gaps; say what the chosen checkpoint has."""
        del pl_module
        chosen = self._chosen(trainer)

        def report(run: Run) -> None:
            if chosen is not None:
                run.summary.update({f"chosen/{name}": value for name, value in chosen.items()})
            _log(run, trainer, pareto_charts(self._history, chosen))

        self._attempt(trainer, report)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the final tables and bars."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        features = [name for penalty in _penalties(trainer, pl_module) for name in penalty.feature_names]

        def report(run: Run) -> None:
            groups = _group_names(trainer, self._rates)
            _log(run, trainer, result_tables(metrics, features) | group_charts(self._rates, groups))

        self._attempt(trainer, report)

    def _describe(self, trainer: Trainer, pl_module: LightningModule) -> None:
        penalties = _penalties(trainer, pl_module)

        def report(run: Run) -> None:
            run.config.update(run_config(trainer, penalties), allow_val_change=True)  # type: ignore[no-untyped-call]
            for penalty in penalties:
                define_metrics(run, feature_names(penalty.feature_names))
            if (metrics := _metrics_of(pl_module, "val")) is not None:
                groups = _group_names(trainer, metrics.num_groups)
                define_metrics(run, evaluation_names(groups))

        self._attempt(trainer, report)

    def _log_rates(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        metrics = _metrics_of(pl_module, stage)
        if metrics is None or _logger(trainer) is None:
            return
        self._rates = metrics.group_rates()  # on all ranks
        groups = _group_names(trainer, self._rates)
        for name, rate in self._rates.items():
            for group, value in zip(groups, rate.value, strict=True):
                # Equal on all ranks already; the maximum of equals is exact.
                pl_module.log(rate_name(stage, name, group), value, sync_dist=True, reduce_fx="max")

    def _chosen(self, trainer: Trainer) -> dict[str, float] | None:
        checkpoint = chosen_by(trainer)
        if checkpoint is not None and checkpoint.best_model_score is not None:
            best, name = float(checkpoint.best_model_score), checkpoint.monitor
            return next((row for row in self._history if row.get(name or "") == best), None)
        return self._history[-1] if self._history else None

    def _attempt(self, trainer: Trainer, report: Callable[[Run], None]) -> None:
        """Report on rank zero; a page that cannot be written must not cost the training."""
        logger = _logger(trainer)
        if logger is None or self._given_up or not trainer.is_global_zero:
            return
        try:
            report(logger.experiment)
        except Exception as error:  # noqa: BLE001 - without a network the client raises many kinds
            self._given_up = True
            rank_zero_warn(f"W&B: the report of this run is incomplete: {first_line(error)}")


def _logger(trainer: Trainer) -> WandbLogger | None:
    return next((logger for logger in trainer.loggers if isinstance(logger, WandbLogger)), None)


def _log(run: Run, trainer: Trainer, items: Mapping[str, Any]) -> None:
    if items:
        run.log({**items, "epoch": trainer.current_epoch, "trainer/global_step": trainer.global_step})


def _metrics_of(pl_module: LightningModule, stage: str) -> EvaluationMetrics | None:
    metrics = getattr(pl_module, f"{stage}_metrics", None)
    return metrics if isinstance(metrics, EvaluationMetrics) else None


def _penalties(trainer: Trainer, pl_module: LightningModule) -> list[RelatedFeaturePenalty]:
    # Those of the module, and those that a callback puts into a module which knows nothing of them.
    owned = list(pl_module.modules())
    lent = [getattr(callback, "penalty", None) for callback in getattr(trainer, "callbacks", [])]
    found = {id(item): item for item in [*owned, *lent] if isinstance(item, RelatedFeaturePenalty)}
    return list(found.values())


def _group_names(trainer: Trainer, known: int | Mapping[str, GroupRate]) -> list[str]:
    number = known if isinstance(known, int) else max((len(rate.value) for rate in known.values()), default=0)
    names: list[str] = getattr(getattr(trainer, "datamodule", None), "group_names", [])
    return names if len(names) == number else [str(index) for index in range(number)]


def _validation_metrics(trainer: Trainer) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith("val_") and "/" not in name
    }
