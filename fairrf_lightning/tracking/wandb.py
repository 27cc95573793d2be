"""Weights & Biases: a logger that never blocks, and a callback that shows fairness on the page of a run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from torch import Tensor

from fairrf_lightning.audit.result import RATES
from fairrf_lightning.callbacks.checkpointing import chosen_by
from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback
from fairrf_lightning.callbacks.run_files import describe_data
from fairrf_lightning.errors import first_line
from fairrf_lightning.messages import first_upper
from fairrf_lightning.metrics.counts import GAPS, GroupRate
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.run_state import penalties_of

if TYPE_CHECKING:
    from wandb import Run

Metrics = Mapping[str, float]

GAP_LABELS = {gap.key: f"{gap.label}, {gap.name}" for gap in GAPS.values()}
RATE_LABELS = {name: first_upper(words) for name, words in RATES.items()}
# Metrics whose best value stands for the run. Gaps are not among them: the smallest gap is that of an
# untrained model, which treats all alike. The chosen checkpoint's are in the summary as chosen/val_eo_gap.
_BEST = {"val_loss": "min", "val_objective": "min", "val_acc": "max"}

_REACH_SECONDS = 3.0
# Seconds; W&B's own are 90 and unlimited. Anything not sent by then is on disk, for `wandb sync`.
_TIMEOUTS = {"init_timeout": 30.0, "finish_timeout": 30.0}
_TIMEOUTS_WITH_CHECKPOINTS = _TIMEOUTS | {"finish_timeout": 600.0}  # they may be large


class WandbLogger(LightningWandbLogger):
    """Lightning's WandbLogger, which logs offline where that one would prompt, wait or fail.

    Without an API key, with a key that the server rejects, or without a network, the run is logged offline
    after one line that gives the reason. If the network fails later, training continues. A mode that you
    set yourself (``mode=``, ``offline=``, ``WANDB_MODE``) is kept.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Run:
        """The run of W&B; started on first use, in one process of a job."""
        import wandb  # noqa: PLC0415 - an optional dependency

        if self._experiment is None and wandb.run is None and getattr(self, "_attach_id", None) is None:
            self._choose_mode()
            try:
                self._start()
            except wandb.errors.Error as error:
                if self._wandb_init.get("mode") == "offline":
                    raise
                self._go_offline(first_line(error))
                self._start()
        return cast("Run", super().experiment)

    def _start(self) -> None:
        # As Lightning does it. jsonargparse reads here that further options are those of wandb.init.
        import wandb  # noqa: PLC0415

        self._experiment = wandb.init(**self._wandb_init)
        axis = "global_step" if self._wandb_init.get("sync_tensorboard") else "trainer/global_step"
        self._experiment.define_metric(axis)
        self._experiment.define_metric("*", step_metric=axis, step_sync=True)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Log checkpoints as artifacts if requested; a failure does not end the training."""
        self._attempt(super().after_save_checkpoint, checkpoint_callback)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Log the last checkpoints if requested; a failure does not end the training."""
        self._attempt(super().finalize, status)

    def _choose_mode(self) -> None:
        if self._offline:
            # Lightning sets an environment variable, which W&B may have read before.
            self._wandb_init["mode"] = "offline"
        if self._wandb_init.get("anonymous") is None:
            self._wandb_init.pop("anonymous", None)  # W&B warns about it, and Lightning always passes it
        timeouts = _TIMEOUTS_WITH_CHECKPOINTS if self._log_model else _TIMEOUTS
        if self._wandb_init.get("settings") is None:
            self._wandb_init["settings"] = {
                name: value for name, value in timeouts.items() if f"WANDB_{name.upper()}" not in os.environ
            }
        mode = self._wandb_init.get("mode") or _environment_mode()
        if mode in ("online", "run") and (reason := offline_reason()):
            self._go_offline(reason)

    def _go_offline(self, reason: str) -> None:
        self._wandb_init["mode"] = "offline"
        runs = Path(self.save_dir or ".") / "wandb" / "offline-run-*"
        rank_zero_info(f"W&B: {reason}, so this run is logged offline; send it later with: wandb sync {runs}")

    def _attempt(self, action: Callable[[Any], None], argument: Any) -> None:
        try:
            action(argument)
        except Exception as error:  # noqa: BLE001 - without a network the client raises many kinds
            rank_zero_warn(f"W&B: a checkpoint was not logged as an artifact: {first_line(error)}")


def offline_reason() -> str | None:
    """Return why W&B cannot be used online now, decided within seconds; ``None`` if it can."""
    import wandb  # noqa: PLC0415

    if (mode := _environment_mode()) in ("offline", "dryrun", "disabled"):
        return f"its mode is set to {mode}"
    try:
        # The client's own check: immediate without a key or with a bad one, 10 s without a network.
        return None if wandb.login(prompt=False, verify=True) else "no API key is configured"
    except wandb.errors.Error as error:
        server = wandb.setup().settings.base_url
        if not _is_reachable(server):
            return f"{server} cannot be reached"
        return f"{server} does not take the API key ({first_line(error)})"


def _environment_mode() -> str:
    """Return the mode in the environment or in W&B's own settings, ``"online"`` by default."""
    import wandb  # noqa: PLC0415

    return os.environ.get("WANDB_MODE") or wandb.setup().settings.mode


def _is_reachable(server: str) -> bool:
    import requests  # noqa: PLC0415 - comes with wandb

    with suppress(requests.RequestException):
        requests.get(server, timeout=_REACH_SECONDS)  # any answer will do
        return True
    return False


class WandbReport(Callback):
    """Adds fairness to a W&B run; without a WandbLogger it does nothing.

    - Config: data set, columns, related features, whether S is an input, the options of the method.
    - Axes and summary values: epoch metrics on the epoch axis; the largest ``val_acc``, the smallest losses,
      the last value of all others.
    - Each validation and test: selection rate, true and false positive rate and accuracy of each group, as
      ``val_true_positive_rate/<group>``.
    - After training: accuracy against each gap over the epochs (``pareto/eo_gap``), and in the summary the
      values at the chosen checkpoint (``chosen/val_acc``).
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
        """Log the groups' rates before the module resets them."""
        if not trainer.sanity_checking:
            self._log_rates(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the groups' rates before the module resets them."""
        self._log_rates(trainer, pl_module, "test")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep this epoch's metrics for the Pareto chart."""
        del pl_module
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            found = trainer.callback_metrics.items()
            metrics = {key: float(of) for key, of in found if key.startswith("val_") and "/" not in key}
            if "val_acc" in metrics:
                self._history.append({"epoch": trainer.current_epoch} | metrics)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw accuracy against the gaps; add the chosen checkpoint's values to the summary."""
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
        features = [name for of in penalties_of(trainer, pl_module) for name in of.feature_names]

        def report(run: Run) -> None:
            groups = _group_names(trainer, self._rates)
            _log(run, trainer, _result_tables(metrics, features) | _group_charts(self._rates, groups))

        self._attempt(trainer, report)

    def _describe(self, trainer: Trainer, pl_module: LightningModule) -> None:
        penalties = penalties_of(trainer, pl_module)

        def report(run: Run) -> None:
            run.config.update(_run_config(trainer, penalties), allow_val_change=True)  # type: ignore[no-untyped-call]
            features = [name for penalty in penalties for name in penalty.feature_names]
            _define_metrics(run, (f"{of}/{name}" for name in features for of in ("lambda", "penalty")))
            if (metrics := _metrics_of(pl_module, "val")) is not None:
                _define_metrics(run, _evaluation_names(_group_names(trainer, metrics.num_groups)))

        self._attempt(trainer, report)

    def _log_rates(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        metrics = _metrics_of(pl_module, stage)
        if metrics is None or _logger(trainer) is None:
            return
        self._rates = metrics.group_rates()  # on all ranks
        groups = _group_names(trainer, self._rates)
        for name, rate in self._rates.items():
            for group, value in zip(groups, rate.value, strict=True):
                # Equal on all ranks already; the maximum of equal values is exact.
                pl_module.log(_rate_name(stage, name, group), value, sync_dist=True, reduce_fx="max")

    def _chosen(self, trainer: Trainer) -> dict[str, float] | None:
        checkpoint = chosen_by(trainer)
        if checkpoint is not None and checkpoint.best_model_score is not None:
            best, name = float(checkpoint.best_model_score), checkpoint.monitor
            return next((row for row in self._history if row.get(name or "") == best), None)
        return self._history[-1] if self._history else None

    def _attempt(self, trainer: Trainer, report: Callable[[Run], None]) -> None:
        """Report on rank zero; a failure must not end the training."""
        logger = _logger(trainer)
        if logger is None or self._given_up or not trainer.is_global_zero:
            return
        try:
            report(logger.experiment)
        except Exception as error:  # noqa: BLE001 - without a network the client raises many kinds
            self._given_up = True
            rank_zero_warn(f"W&B: the report of this run is incomplete: {first_line(error)}")


def pareto_charts(history: Sequence[Metrics], chosen: Metrics | None) -> dict[str, Any]:
    """Return scatter plots of accuracy against each gap, one point per epoch."""
    import wandb  # noqa: PLC0415

    from fairrf_lightning.experiments.choose import pareto_front  # noqa: PLC0415 - many modules, used once

    charts = {}
    for gap, label in GAP_LABELS.items():
        rows = [row for row in history if not math.isnan(row.get(f"val_{gap}", math.nan))]
        if not rows:
            continue
        points = [(row[f"val_{gap}"], row["val_acc"]) for row in rows]
        gaps, accuracies = (pd.Series(values) for values in zip(*points, strict=True))
        front = {points[position] for position in pareto_front(accuracies, gaps)}
        both = zip(points, rows, strict=True)
        lines = [[*point, row["epoch"], point in front, row is chosen] for point, row in both]
        table = _table([f"val_{gap}", "val_acc", "epoch", "on_front", "chosen"], lines)
        title = f"Accuracy against {label}: epochs of this run, validation split"
        charts[f"pareto/{gap}"] = wandb.plot.scatter(table, f"val_{gap}", "val_acc", title=title)
    return charts


def _result_tables(metrics: Metrics, features: Sequence[str]) -> dict[str, Any]:
    """Return the table of accuracy and gaps with their intervals, and that of the related features."""
    results = [
        [label, *(metrics[f"test_{name}{end}"] for end in ("", "_low", "_high"))]
        for name, label in {"acc": "accuracy", **GAP_LABELS}.items()
        if f"test_{name}" in metrics
    ]
    by_feature = [
        [name, metrics[f"test_lambda/{name}"], metrics[f"test_penalty/{name}"]]
        for name in features
        if f"test_lambda/{name}" in metrics
    ]
    tables = {
        "test/results": _table(["metric", "value", "low", "high"], results),
        "test/features": _table(["feature", "lambda", "penalty"], by_feature),
    }
    return {name: table for name, table in tables.items() if table.data}


def _group_charts(rates: Mapping[str, GroupRate], groups: Sequence[str]) -> dict[str, Any]:
    """Return the table of the groups' rates with their intervals, and a bar chart of each rate."""
    import wandb  # noqa: PLC0415

    if not rates:
        return {}
    rows = [
        [group, RATE_LABELS[name], *(part[index].item() for part in rate)]
        for index, group in enumerate(groups)
        for name, rate in rates.items()
    ]
    charts = {"test/groups": _table(["group", "rate", "value", "low", "high", "rows"], rows)}
    for name, rate in rates.items():
        bars = _table(["group", name], list(zip(groups, rate.value.tolist(), strict=True)))
        title = f"{RATE_LABELS[name]} by group, test split"
        charts[f"test_groups/{name}"] = wandb.plot.bar(bars, "group", name, title=title)
    return charts


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    import wandb  # noqa: PLC0415

    return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


def _run_config(trainer: Trainer, penalties: Sequence[RelatedFeaturePenalty]) -> dict[str, Any]:
    """Return data, columns, related features, the use of S, and the options of penalty and callbacks.

    eta, beta and seed are at the top level, where W&B's tables and sweeps find them.
    """
    data = describe_data(trainer)
    config: dict[str, Any] = {"fairness": {}} | ({"data": data} if data else {})
    fairness = config["fairness"]
    if "PL_GLOBAL_SEED" in os.environ:
        config["seed"] = int(os.environ["PL_GLOBAL_SEED"])
    if data:
        fairness["sensitive"] = data["sensitive"]
        fairness["sensitive_in_inputs"] = data["include_sensitive"]
        fairness["sensitive_in_penalty"] = data["expose_sensitive"]
    if penalties:
        first = penalties[0]
        fairness |= {"related": first.feature_names, "statistic": first.statistic, "given": first.given}
        config["eta"] = first.eta.tolist() if isinstance(first.eta, Tensor) else first.eta
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, LambdaUpdateCallback):
            fairness |= {"every_n_steps": callback.every_n_steps, "rule": callback.rule}
            config["beta"] = callback.beta
        elif isinstance(callback, PretrainCallback):
            names = ("epochs", "steps", "patience")
            fairness["pretrain"] = {name: getattr(callback, name) for name in names}
    return config


def _define_metrics(run: Run, names: Iterable[str]) -> None:
    """Put metrics that are logged once per epoch on the epoch axis; Lightning puts all on that of the steps.

    By name, not by pattern: where a name matches several patterns, it is undefined which one counts.
    """
    run.define_metric("epoch")
    for name in names:
        run.define_metric(name, step_metric="epoch", summary=_BEST.get(name))


def _evaluation_names(groups: Iterable[str]) -> Iterator[str]:
    """Yield the names of what FairRFModule and this callback log once per epoch."""
    yield from ("train_loss", "train_penalty", "val_loss", "val_penalty", "val_objective")
    for name in ("acc", *GAPS):
        yield from (f"val_{name}", f"val_{name}_low", f"val_{name}_high")
    for group in groups:
        yield from (_rate_name("val", rate, group) for rate in RATES)


def _rate_name(stage: str, rate: str, group: str) -> str:
    """Return the name of a group's rate; W&B reads dots and slashes as levels."""
    return f"{stage}_{rate}/{group.replace('/', '_').replace('.', '_')}"


def _logger(trainer: Trainer) -> LightningWandbLogger | None:
    return next((logger for logger in trainer.loggers if isinstance(logger, LightningWandbLogger)), None)


def _log(run: Run, trainer: Trainer, items: Mapping[str, Any]) -> None:
    if items:
        run.log({**items, "epoch": trainer.current_epoch, "trainer/global_step": trainer.global_step})


def _metrics_of(pl_module: LightningModule, stage: str) -> EvaluationMetrics | None:
    metrics = getattr(pl_module, f"{stage}_metrics", None)
    return metrics if isinstance(metrics, EvaluationMetrics) else None


def _group_names(trainer: Trainer, known: int | Mapping[str, GroupRate]) -> list[str]:
    number = known if isinstance(known, int) else max((len(rate.value) for rate in known.values()), default=0)
    names: list[str] = getattr(getattr(trainer, "datamodule", None), "group_names", [])
    return names if len(names) == number else [str(index) for index in range(number)]
