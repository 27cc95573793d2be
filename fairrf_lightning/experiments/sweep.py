"""Search for a setting with Optuna; batches of trials train as stacks, in one or several processes."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from socket import gethostname
from statistics import mean, stdev
from typing import Any, TypeAlias

import optuna
import pandas as pd
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from fairrf_lightning.backbones import BACKBONES
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import DivergedError, InputError, check_at_least
from fairrf_lightning.experiments.choose import (
    ACCURACY,
    BALANCED,
    CONSTANT,
    IDLE,
    MODELS,
    SHARE,
    STEPS,
    eligible,
    pareto_front,
    preferred,
    reference,
)
from fairrf_lightning.experiments.results import data_identity
from fairrf_lightning.experiments.run import check_seeds, run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.space import PARAMETERS, Objective, Space, read_space
from fairrf_lightning.experiments.study import DIVERGED, TrialQueue, open_study, quiet_optuna
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.presets import class_path

_VANILLA = "vanilla_"  # prefix of the measures of a trial's structure with eta 0
_PAUSE = 0.5  # seconds between looks at the database while other processes finish
Measures: TypeAlias = dict[str, list[float]]  # by name, one per seed
Trained: TypeAlias = Iterator[tuple[Trial, Measures, str]]  # the text is the reason if there are no measures
_Advance: TypeAlias = Callable[[float], None]  # called with trial-epochs
AfterBatch: TypeAlias = Callable[[pd.DataFrame], None]


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep and the row, setting and schedule that were chosen among them."""

    trials: pd.DataFrame  # of :func:`trials_frame`
    chosen: pd.Series
    setting: Setting
    schedule: Schedule
    rejected: list[str]  # trials within the accuracy budget that are not eligible, with the reason
    objective: Objective
    identity: Mapping[str, Any]  # everything that can change a result of the study
    seed: int  # of the first model of each trial

    @property
    def front(self) -> pd.DataFrame:
        """The rows of the Pareto front, from the smallest objective up."""
        return self.trials.iloc[pareto_front(self.trials[ACCURACY], self.trials[self.objective.name])]

    def table(self) -> pd.DataFrame:
        """Return the front as it is printed: trial, accuracy, objective and parameters."""
        rows = []
        for index, row in self.front.iterrows():
            mark = " (chosen)" if index == self.chosen.name else ""
            known = {name: row[name] for name in PARAMETERS if not pd.isna(row.get(name))}
            words = (f"{k} {v if isinstance(v, str) else f'{v:.3g}'}" for k, v in known.items())
            trial = trial_name(row).partition(",")[0] + mark
            rows.append((trial, row[ACCURACY], row[self.objective.name], ", ".join(words)))
        return pd.DataFrame(rows, columns=["", "accuracy", self.objective.name, "parameters"])

    def fit_options(self) -> dict[str, Any]:
        """Return the options of ``fit``, except the data, that train the model that was measured."""
        setting, schedule = self.setting, self.schedule
        backbone: dict[str, Any] = {"class_path": class_path(BACKBONES[setting.backbone])}
        if setting.backbone == "mlp":
            backbone["init_args"] = {"hidden": list(setting.hidden), "dropout": setting.dropout}
        update: dict[str, Any] = {"beta": setting.beta, "every_n_steps": None}
        if setting.every_n_steps is not None:
            update |= {"every_n_steps": setting.every_n_steps, "rule": setting.rule}
        penalty = {name: getattr(setting, name) for name in ("eta", "statistic", "given")}
        model = {"backbone": backbone, **penalty, "lr": schedule.lr}
        return {
            "seed_everything": self.seed,
            "trainer": {"max_epochs": schedule.epochs},
            "pretrain": {"epochs": schedule.pretrain_epochs},
            "lambda_update": update,
            "model": {"class_path": "fairrf_lightning.FairRFModule", "init_args": model},
        }

    def __repr__(self) -> str:
        """Return the front as text."""
        return f"Sweep: {self.trials['trial'].notna().sum()} trials\n{self.table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return str(self.table().to_html(index=False))


def sweep(
    data: TabularDataModule,
    *,
    trials: int = 60,
    objective: str = "val_covariance",
    space: str | Path | None = None,
    storage: str | Path | None = None,
    study: str = "fairrf",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 20,
    batch: int = 6,
    workers: int = 1,
    heartbeat: int = 10,
    seed: int = 0,
    max_accuracy_loss: float = 0.01,
    advance: _Advance = lambda _: None,
    after_batch: AfterBatch = lambda _: None,
) -> SweepResult:
    """Search for a setting, or resume a study, until it has a number of trials.

    Accuracy is maximised and the objective minimised, both on validation rows; the test rows are not used.
    All trials share one split: with a split per seed, test rows of one would be validation rows of another.

    Args:
        data: The data module, one split for all trials.
        trials: Number of trials; those already done count.
        objective: Measure to minimise together with maximising val_acc. S-free: val_covariance,
            val_correlation, val_covariance_positives, val_correlation_positives. With S:
            with_s:val_dp_gap, with_s:val_eo_gap, with_s:val_eodds_gap.
        space: YAML file of the search space.
        storage: A SQLite file, or the address of a database such as ``postgresql://user@host/db``;
            ``None`` keeps the study in memory.
        study: Name of the study in the database.
        seeds: Seeds of the models of each trial: initial weights and dropout masks.
        epochs: Number of epochs per model; each model keeps its best one.
        batch: Number of trials that train as one stack; they differ in eta and beta only.
        workers: Number of processes on this machine; more than one need a storage.
        heartbeat: Seconds between heartbeats of a running trial.
        seed: Seed of the search.
        max_accuracy_loss: Validation accuracy that the chosen setting may lose against eta 0.
        advance: Called with trial-epochs as they pass.
        after_batch: Called with the table of trials after each batch.

    Returns:
        The trials, the chosen setting and the Pareto front.

    Raises:
        InputError: If an option is invalid, or the study was started with other options.
    """
    check_at_least(1, trials=trials, batch=batch, workers=workers, heartbeat=heartbeat, epochs=epochs)
    check_at_least(0, max_accuracy_loss=max_accuracy_loss, seed=seed)
    check_seeds(seeds)
    if workers > 1 and storage is None:
        raise InputError(f"--workers {workers}: several processes need a --storage.")
    target, searched = Objective.parse(objective), read_space(space, epochs)
    target.check(data)
    data.prepare_data()
    data.setup()
    searched = searched.with_default("every_n_steps", data.update_interval)
    batch = max(1, min(batch, trials // workers))
    search = _Search(data, searched, target, list(seeds), epochs, trials, batch, seed)
    identity = search.identity()
    connection = (storage, study, identity, heartbeat)
    with quiet_lightning(), quiet_optuna():
        opened = open_study(*connection)
        with _helpers(search, connection, workers - 1):
            search.work(opened, advance, after_batch)
    frame = trials_frame(opened.get_trials(deepcopy=False), searched, target.name)
    chosen, rejected = choose_trial(frame, target.name, max_accuracy_loss)
    params = params_of(chosen, searched)
    setting, schedule = searched.setting(params), searched.schedule(params, epochs)
    return SweepResult(frame, chosen, setting, schedule, rejected, target, identity, search.seeds[0])


@dataclass(frozen=True)
class _Search:
    """The work of one process on a study; other processes may work on it at the same time."""

    data: TabularDataModule
    space: Space
    objective: Objective
    seeds: list[int]
    epochs: int
    trials: int
    batch: int
    seed: int

    def identity(self) -> dict[str, Any]:
        """Return everything that can change a trial's result."""
        return {
            **data_identity(self.data),
            "related": "+".join(Setting().related_in(self.data)),
            "data seed": self.data.seed,
            "epochs": self.epochs,
            "seeds": self.seeds,
            "objective": self.objective.name,
            "space": self.space.describe(),
        }

    def work(self, study: optuna.Study, advance: _Advance, after_batch: AfterBatch) -> None:
        """Train until all trials are done, here or in other processes."""
        queue = TrialQueue(study, self.space, self.trials, self.seed)
        progress = _Progress(advance)
        while (done := queue.done) < self.trials:
            progress.move_to(done * self.epochs)
            with ExitStack() as heartbeats:
                asked = queue.ask(self.batch, heartbeats)
                self._run_batch(study, queue, asked, progress.move)
            known = queue.known()
            if not asked:
                time.sleep(_PAUSE)  # other processes work on the rest
            elif any(trial.state == TrialState.COMPLETE for trial in known):
                after_batch(trials_frame(known, self.space, self.objective.name))
        progress.move_to(self.trials * self.epochs)

    def _run_batch(
        self, study: optuna.Study, queue: TrialQueue, asked: list[Trial], advance: _Advance
    ) -> None:
        unfinished = {trial.number: trial for trial in asked}
        try:
            for trial, values, reason in self._train(asked, advance):
                self._tell(study, trial, values, reason)
                del unfinished[trial.number]
        finally:
            queue.requeue(list(unfinished.values()))  # empty unless interrupted

    def _tell(self, study: optuna.Study, trial: Trial, values: Measures, reason: str) -> None:
        with suppress(UpdateFinishedTrialError):  # another process took it for dead and queued it again
            trial.set_user_attr("process", f"{gethostname()}:{os.getpid()}")
            if reason:
                trial.set_user_attr(DIVERGED, reason)
                study.tell(trial, state=TrialState.FAIL)
                return
            for name, measured in values.items():
                trial.set_user_attr(name, measured)
            objectives = [mean(values[name]) for name in (ACCURACY, self.objective.name)]
            study.tell(trial, objectives, skip_if_finished=True)

    def _train(self, trials: Sequence[Trial], advance: _Advance) -> Trained:
        stacks: dict[tuple[StackConfig, Schedule], list[Trial]] = defaultdict(list)
        for trial in trials:
            schedule = self.space.schedule(trial.params, self.epochs)
            stacks[self.space.setting(trial.params).stack_config, schedule].append(trial)
        for (_, schedule), together in stacks.items():
            try:
                measures = self._measures(together, schedule, advance)
            except DivergedError as error:
                if len(together) == 1:
                    yield together[0], {}, str(error)
                else:  # one model ends the stack, but only its own trial fails
                    yield from chain.from_iterable(self._train([trial], advance) for trial in together)
                continue
            for trial in together:
                setting = self.space.setting(trial.params)
                vanilla = measures[_vanilla(setting)]
                values = measures[setting] | {_VANILLA + name: value for name, value in vanilla.items()}
                # Balanced accuracy is undefined where a class has no validation rows.
                needed = (ACCURACY, self.objective.name, _VANILLA + ACCURACY, _VANILLA + self.objective.name)
                finite = all(math.isfinite(value) for name in needed for value in values[name])
                yield trial, values, "" if finite else "its measures are not finite"

    def _measures(
        self, trials: Sequence[Trial], schedule: Schedule, advance: _Advance
    ) -> dict[Setting, Measures]:
        settings = [self.space.setting(trial.params) for trial in trials]
        unique = list(dict.fromkeys([*map(_vanilla, settings), *settings]))
        share = len(trials) / (len(unique) * len(self.seeds))
        frame = run_settings(
            lambda **_: self.data,
            unique,
            self.seeds,
            schedule,
            evaluate=self.objective.measure,
            advance=lambda models: advance(models * share),
        )
        size, names = len(self.seeds), (ACCURACY, self.objective.name, BALANCED, SHARE, STEPS)
        return {
            setting: {name: frame[name].iloc[n * size : (n + 1) * size].tolist() for name in names}
            for n, setting in enumerate(unique)
        }


def _vanilla(setting: Setting) -> Setting:
    return replace(setting, eta=0.0, beta=Setting.beta)


class _Progress:
    """Position of a study in trial-epochs; it never decreases."""

    def __init__(self, advance: _Advance) -> None:
        self._advance, self._position = advance, 0.0

    def move_to(self, position: float) -> None:
        if position > self._position:
            self.move(position - self._position)

    def move(self, trial_epochs: float) -> None:
        self._advance(trial_epochs)
        self._position += trial_epochs


@contextmanager
def _helpers(search: _Search, connection: tuple[Any, ...], number: int) -> Iterator[None]:
    """Start more processes that work on the same study."""
    context = get_context("spawn")
    processes = [context.Process(target=_help, args=(search, connection), daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()


def _help(search: _Search, connection: tuple[Any, ...]) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # as in `cli.main`
    with suppress(KeyboardInterrupt), quiet_optuna():
        search.work(open_study(*connection), lambda _: None, lambda _: None)


def trials_frame(trials: Sequence[FrozenTrial], space: Space, measure: str) -> pd.DataFrame:
    """Return one row per finished trial, then one per vanilla model of each structure.

    Columns are ``trial`` (empty for vanilla models), the space's parameters, ``val_acc``, the measure,
    ``val_balanced_acc`` and ``val_positive_share``, means over seeds with their ``_std``, and the numbers
    of ``models``, of ``constant_models``, which give every validation row the same decision, and of
    ``idle_models``, whose kept epoch is one of pretraining.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        reasons = [trial.user_attrs[DIVERGED] for trial in trials if DIVERGED in trial.user_attrs]
        raise InputError(f"no trial could be measured: {(reasons or ['no trial has finished'])[0]}")
    rows = [_row(trial, trial.params, "", measure) | {"trial": trial.number} for trial in done]
    structures: dict[str, FrozenTrial] = {}
    for trial in done:
        structures.setdefault(str(space.structure(trial.params)), trial)
    for trial in structures.values():
        vanilla = _row(trial, space.structure(trial.params), _VANILLA, measure)
        rows.append(vanilla | {"eta": 0.0, "trial": None})
    frame = pd.DataFrame(rows)
    frame["eta"] = frame["eta"].fillna(space.setting({}).eta)  # where it is not searched
    return frame[["trial", *(name for name in frame.columns if name != "trial")]].astype({"trial": "Int64"})


def _row(trial: FrozenTrial, params: dict[str, Any], prefix: str, measure: str) -> dict[str, Any]:
    row = dict(params)
    for name in (ACCURACY, measure, BALANCED, SHARE):
        values: list[float] = trial.user_attrs[prefix + name]
        row[name] = mean(values)
        row[f"{name}_std"] = stdev(values) if len(values) > 1 else float("nan")
    shares: list[float] = trial.user_attrs[prefix + SHARE]
    idle = 0 if prefix else trial.user_attrs[STEPS].count(0)
    return row | {MODELS: len(shares), CONSTANT: sum(map(is_constant, shares)), IDLE: idle}


def choose_trial(frame: pd.DataFrame, measure: str, max_accuracy_loss: float) -> tuple[pd.Series, list[str]]:
    """Return the eligible row with the smallest measure, and the rejected rows with the reason.

    Budget and eligibility are those of the grid, relative to the best vanilla model.
    """
    rows = frame.assign(adversary_lr=0.0, remove="")  # trials have neither
    vanilla = reference(rows)
    if vanilla is None:
        raise InputError("the study has no vanilla model to compare with: name another --study.")
    within = eligible(rows, vanilla, max_accuracy_loss, trial_name)
    best = preferred(within.settings, measure)
    chosen = vanilla if best is None else best
    return frame[frame.index == chosen.name].iloc[0], within.rejected


def trial_name(row: pd.Series) -> str:
    """Return the name of a row of :func:`trials_frame`."""
    return "vanilla" if pd.isna(row["trial"]) else f"trial {int(row['trial'])}, eta {row['eta']:.3g}"


def params_of(row: pd.Series, space: Space) -> dict[str, Any]:
    """Return the parameters of a row of :func:`trials_frame` as plain values."""
    found = {name: row[name] for name in ("eta", *space.distributions) if not pd.isna(row.get(name))}
    return {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}
