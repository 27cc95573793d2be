"""Search for a setting with Optuna; batches of trials train as stacks.

Several processes may work on one study. Optuna's storage records a heartbeat of each running trial, and
trials of a process that died are queued again.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from socket import gethostname
from statistics import mean, stdev
from typing import Any, TypeAlias

import numpy as np
import optuna
import pandas as pd
import torch
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler
from optuna.storages import (
    BaseStorage,
    InMemoryStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
    fail_stale_trials,
)
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import DivergedError, InputError, did_you_mean
from fairrf_lightning.experiments.eligibility import (
    ACCURACY,
    BALANCED,
    CONSTANT,
    IDLE,
    MODELS,
    SHARE,
    STEPS,
    eligible,
    reference,
)
from fairrf_lightning.experiments.identity import data_identity
from fairrf_lightning.experiments.pareto import pareto_front
from fairrf_lightning.experiments.runner import run_settings
from fairrf_lightning.experiments.setting import Recipe, Schedule, Setting
from fairrf_lightning.experiments.space import PARAMETERS, Distribution, Space, read_space
from fairrf_lightning.experiments.stack import Stack
from fairrf_lightning.experiments.stacked_metrics import related_of
from fairrf_lightning.functional import Statistic
from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.metrics.related import FeaturePenalties
from fairrf_lightning.penalty import Given, RelatedFeaturePenalty
from fairrf_lightning.quiet import quiet_lightning

S_FREE: dict[str, tuple[Statistic, Given]] = {
    "val_covariance": ("covariance", "all"),
    "val_correlation": ("correlation", "all"),
    "val_covariance_positives": ("covariance", "positives"),
    "val_correlation_positives": ("correlation", "positives"),
}
WITH_S = ("val_dp_gap", "val_eo_gap", "val_eodds_gap")
_CONSENT = "with_s:"
_VANILLA = "vanilla_"  # prefix of the measures of a trial's structure with eta 0
_DIVERGED = "diverged"  # a user attribute with the reason
_IDENTITY = "sweep"
_GRACE = 3  # heartbeats that may be missed before a trial counts as dead
_MAX_RETRIES = 3
_BUSY = 60  # seconds that a process waits while another one writes to a SQLite file
_PAUSE = 0.5  # seconds between looks at the database while other processes finish
_BACKBONES = {"mlp": "MLP", "linear": "Linear", "svm": "LinearSVM"}
Measures: TypeAlias = dict[str, list[float]]  # by name, one per seed
Advance: TypeAlias = Callable[[float], None]


@dataclass(frozen=True)
class Objective:
    """The second objective of a sweep; the first is validation accuracy.

    The S-free ones are the mean of the related features' ``R`` on the validation rows. Statistic and rows
    are the same for all trials, whatever their penalty, so that trials can be compared.

    Args:
        name: Name of the measure, such as ``"val_covariance"`` or ``"val_dp_gap"``.

    >>> Objective.parse("with_s:val_dp_gap").uses_sensitive
    True
    """

    name: str = "val_covariance"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return the objective of ``--objective``; a gap needs the prefix ``with_s:``."""
        name = text.removeprefix(_CONSENT)
        if name not in (*S_FREE, *WITH_S):
            choices = [*S_FREE, *(_CONSENT + gap for gap in WITH_S)]
            raise InputError(f"--objective {text}: no such objective; {did_you_mean(text, choices)}")
        if (name in WITH_S) != text.startswith(_CONSENT):
            looks = "looks at S on the validation rows; if you may, say so by"
            advice = looks if name in WITH_S else "does not look at S; write"
            right = f"{_CONSENT}{name}" if name in WITH_S else name
            raise InputError(f"--objective {text}: {name} {advice} --objective {right}")
        return cls(name)

    @property
    def uses_sensitive(self) -> bool:
        """Whether S of the validation rows is used."""
        return self.name in WITH_S

    def check(self, data: TabularDataModule) -> None:
        """Raise if the data lack what is measured, or expose S without consent."""
        if self.uses_sensitive and data.sensitive is None:
            raise InputError(
                f"--objective with_s:{self.name}: the data do not say which group a row belongs to; "
                f"name the column of S, or take an S-free objective: {', '.join(S_FREE)}."
            )
        if data.expose_sensitive and not self.uses_sensitive:
            raise InputError(
                f"expose_sensitive shows S to the penalty, and {self.name} would measure it: "
                f"take one of {', '.join(_CONSENT + gap for gap in WITH_S)}."
            )

    def measure(self, stack: Stack) -> dict[str, Tensor]:
        """Return accuracy, this measure and those of eligibility of a stack's models, ``(S, P)`` each."""
        values = stack.evaluate(["val"])
        if not self.uses_sensitive:
            values[self.name] = self._mean_penalty(stack)
        # Gaps that were not asked for are not kept.
        return {name: values[name] for name in (ACCURACY, self.name, BALANCED, SHARE)}

    @torch.no_grad()
    def _mean_penalty(self, stack: Stack) -> Tensor:
        module, own = stack.module, stack.module.penalty
        statistic, given = S_FREE[self.name]
        features: dict[str, list[int]] = {name: [] for name in own.feature_names}
        for column, owner in zip(own.columns.tolist(), own.owner.tolist(), strict=True):
            features[own.feature_names[owner]].append(column)
        common = RelatedFeaturePenalty(features, own.eta, statistic, given).to(module.device)
        metric = FeaturePenalties(common).to(module.device)
        module.eval()
        for rows in stack.data.val_dataloader():
            batch = {name: value.to(module.device) for name, value in rows.items()}
            probs = own.probabilities(module(batch["inputs"]))
            metric.update(probs, related_of(batch).unsqueeze(1), batch["target"].unsqueeze(1))
        penalties: Tensor = metric.compute()
        return penalties.view_as(own.weights).mean(-1)


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep and the setting that was chosen among them.

    Args:
        trials: One row per trial, then one per vanilla model, as :func:`trials_frame` returns them.
        chosen: The chosen row.
        setting: Its setting.
        schedule: Its schedule.
        rejected: Trials within the budget of accuracy that were rejected as collapsed, with the reason.
        objective: The second objective.
        identity: Everything that can change a result of the study.
        seed: Seed of the first model of each trial.
    """

    trials: pd.DataFrame
    chosen: pd.Series
    setting: Setting
    schedule: Schedule
    rejected: list[str]
    objective: Objective
    identity: Mapping[str, Any]
    seed: int

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
        backbone: dict[str, Any] = {"class_path": f"fairrf_lightning.backbones.{_BACKBONES[setting.backbone]}"}
        if setting.backbone == "mlp":
            backbone["init_args"] = {"hidden": list(setting.hidden), "dropout": setting.dropout}
        model = {"backbone": backbone, "eta": setting.eta, "statistic": setting.statistic}
        model |= {"given": setting.given, "lr": schedule.lr}
        update: dict[str, Any] = {"beta": setting.beta, "every_n_steps": None}
        if setting.rule != "fixed":
            update |= {"every_n_steps": schedule.update_every, "rule": setting.rule}
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
    storage: str | None = None,
    study: str = "fairrf",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 20,
    batch: int = 6,
    workers: int = 1,
    heartbeat: int = 10,
    seed: int = 0,
    max_accuracy_loss: float = 0.01,
    advance: Advance | None = None,
    after_batch: Callable[[pd.DataFrame], None] | None = None,
) -> SweepResult:
    """Search for a setting, or resume a study, until it has a number of trials.

    Accuracy is maximised and the objective minimised, both on validation rows; the test rows are not used.
    All trials share one split: with a split per seed, test rows of one would be validation rows of another.

    Args:
        data: The data module, one split for all trials.
        trials: Number of trials; those that the study already has count.
        objective: Measure to minimise: one of ``S_FREE``, or ``with_s:`` and one of ``WITH_S``.
        space: YAML file of the search space; ``None`` for the default.
        storage: Database address, such as ``sqlite:///study.db``; ``None`` keeps the study in memory.
        study: Name of the study in the database.
        seeds: Seeds of the models of each trial: initial weights and dropout masks.
        epochs: Number of epochs per model.
        batch: Number of trials that train as one stack; they differ in eta and beta only.
        workers: Number of processes on this machine; more than one need a ``storage``.
        heartbeat: Seconds between heartbeats of a running trial.
        seed: Seed of the search.
        max_accuracy_loss: Validation accuracy that the chosen setting may lose against eta 0.
        advance: Called with trial-epochs as they pass.
        after_batch: Called with the table of trials whenever a batch is done.

    Returns:
        The trials, the chosen setting and the Pareto front.

    Raises:
        InputError: If an option is invalid, or the study was started with other options.
    """
    counts = {"trials": trials, "batch": batch, "workers": workers, "heartbeat": heartbeat, "epochs": epochs}
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"--{name} {value}: expected 1 or more.")
    for name, number in {"max_accuracy_loss": max_accuracy_loss, "seed": seed}.items():
        if not number >= 0:
            raise InputError(f"--{name} {number}: expected 0 or more.")
    if workers > 1 and storage is None:
        raise InputError(f"--workers {workers}: several processes need a --storage.")
    measure = Objective.parse(objective)
    searched = read_space(space, epochs)
    measure.check(data)
    data.prepare_data()
    data.setup("fit")
    searched = searched.with_default("update_every", data.update_interval)
    batch = max(1, min(batch, trials // workers))
    search = Search(
        data, searched, measure, list(seeds), epochs, storage, study, heartbeat, trials, batch, seed
    )
    with quiet_lightning(), quiet_optuna():
        opened = search.open()
        with _helpers(search, workers - 1):
            search.work(opened, advance or (lambda _: None), after_batch or (lambda _: None))
        frame = trials_frame(opened.get_trials(deepcopy=False), searched, measure.name)
    chosen, rejected = choose_trial(frame, measure.name, max_accuracy_loss)
    params = params_of(chosen, searched)
    setting, schedule = searched.setting(params), searched.schedule(params, epochs)
    return SweepResult(
        frame, chosen, setting, schedule, rejected, measure, search.identity(), search.seeds[0]
    )


@dataclass(frozen=True)
class Search:
    """Work on a study until it has its trials; other processes may do the same at the same time.

    Args:
        data: The data module.
        space: The search space.
        objective: The second objective.
        seeds: Seeds of the models of each trial.
        epochs: Number of epochs per model.
        storage: Database address, or ``None``.
        study: Name of the study.
        heartbeat: Seconds between heartbeats.
        trials: Number of trials.
        batch: Number of trials that train as one stack.
        seed: Seed of the search.
    """

    data: TabularDataModule
    space: Space
    objective: Objective
    seeds: list[int]
    epochs: int
    storage: str | None
    study: str
    heartbeat: int
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

    def open(self) -> optuna.Study:
        """Create the study, or load the one of that name if it has the same identity."""
        url = None if self.storage is None else _parse_url(self.storage)
        shown = url or "memory"
        try:
            storage = InMemoryStorage() if url is None else _connect(url, self.heartbeat)
            study = optuna.create_study(
                storage=storage,
                study_name=self.study,
                directions=["maximize", "minimize"],
                load_if_exists=True,
            )
        except ImportError as error:
            reason = str(error.__cause__ or error)
            raise InputError(f"--storage {shown}: the database's driver is not installed: {reason}.") from error
        except (SQLAlchemyError, StorageInternalError, RuntimeError, sqlite3.Error) as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise InputError(f"--storage {shown}: this database cannot be used: {reason}") from error
        identity, known = self.identity(), study.user_attrs.get(_IDENTITY)
        if known is None:
            study.set_user_attr(_IDENTITY, identity)
        elif different := [name for name in {**known, **identity} if known.get(name) != identity.get(name)]:
            raise InputError(
                f"the study '{self.study}' in {shown} was started with other options "
                f"({', '.join(different)}): give the same ones, or name another --study."
            )
        return study

    def work(self, study: optuna.Study, advance: Advance, after_batch: Callable[[pd.DataFrame], None]) -> None:
        """Train until all trials are done, here or elsewhere.

        Args:
            study: The study of :meth:`open`.
            advance: Called with trial-epochs as they pass, those of other processes included.
            after_batch: Called with the table of trials whenever a batch is done.
        """
        queue = TrialQueue(study, self.space, self.trials, self.seed)
        shown = 0.0

        def show(position: float) -> None:
            nonlocal shown
            if position > shown:
                advance(position - shown)
                shown = position

        while (done := queue.done) < self.trials:
            show(done * self.epochs)
            with ExitStack() as heartbeats:
                asked = queue.ask(self.batch, heartbeats)
                if asked:
                    self._run_batch(study, queue, asked, done, show)
            known = study.get_trials(deepcopy=False)
            if not asked:
                time.sleep(_PAUSE)  # other processes work on the rest
            elif any(trial.values for trial in known):
                after_batch(trials_frame(known, self.space, self.objective.name))
        show(self.trials * self.epochs)

    def _run_batch(
        self, study: optuna.Study, queue: TrialQueue, asked: list[Trial], done: int, show: Advance
    ) -> None:
        position = float(done * self.epochs)

        def advance(trial_epochs: float) -> None:
            nonlocal position
            position += trial_epochs
            show(position)

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
                trial.set_user_attr(_DIVERGED, reason)
                study.tell(trial, state=TrialState.FAIL)
                return
            for name, measured in values.items():
                trial.set_user_attr(name, measured)
            objectives = [mean(values[name]) for name in (ACCURACY, self.objective.name)]
            study.tell(trial, objectives, skip_if_finished=True)

    def _train(self, trials: Sequence[Trial], advance: Advance) -> Iterator[tuple[Trial, Measures, str]]:
        """Yield each trial with its measures, or with the reason why it has none."""
        stacks: dict[tuple[Recipe, Schedule], list[Trial]] = defaultdict(list)
        for trial in trials:
            schedule = self.space.schedule(trial.params, self.epochs)
            stacks[self.space.setting(trial.params).recipe, schedule].append(trial)
        for (_, schedule), together in stacks.items():
            yield from self._train_stack(together, schedule, advance)

    def _train_stack(
        self, trials: Sequence[Trial], schedule: Schedule, advance: Advance
    ) -> Iterator[tuple[Trial, Measures, str]]:
        try:
            measures = self._measures(trials, schedule, advance)
        except DivergedError as error:
            if len(trials) == 1:
                yield trials[0], {}, str(error)
                return
            for trial in trials:  # one model ends the stack, and only its own trial shall fail
                yield from self._train_stack([trial], schedule, advance)
            return
        for trial in trials:
            setting = self.space.setting(trial.params)
            vanilla = measures[_vanilla(setting)]
            values = measures[setting] | {_VANILLA + name: value for name, value in vanilla.items()}
            # Balanced accuracy is undefined where a class has no validation rows.
            needed = (ACCURACY, self.objective.name, _VANILLA + ACCURACY, _VANILLA + self.objective.name)
            finite = all(math.isfinite(value) for name in needed for value in values[name])
            yield trial, values, "" if finite else "its measures are not finite"

    def _measures(
        self, trials: Sequence[Trial], schedule: Schedule, advance: Advance
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


class TrialQueue:
    """The trials of a study that several processes may work on.

    A trial follows from the seed, its number and the trials known by then. So a sweep in one process can be
    repeated, and processes never draw the same numbers.

    Args:
        study: The study.
        space: The search space.
        trials: Number of trials that the study shall have.
        seed: Seed of the search.
    """

    def __init__(self, study: optuna.Study, space: Space, trials: int, seed: int = 0) -> None:
        self._study, self._space, self._trials, self._seed = study, space, trials, seed
        self._storage: BaseStorage = study._storage  # noqa: SLF001 - Optuna's functions take it
        self._seen: set[int] = set()

    @property
    def done(self) -> int:
        """Number of finished trials: measured, or diverged."""
        return sum(map(_is_done, self.known()))

    def known(self) -> list[FrozenTrial]:
        """Return all trials of the study."""
        return self._study.get_trials(deepcopy=False)

    def ask(self, most: int, heartbeats: ExitStack) -> list[Trial]:
        """Return new trials that can train as one stack; trials of processes that died come first.

        Args:
            most: Maximum number of trials; fewer if other processes work on the rest.
            heartbeats: Sends heartbeats of the trials until it is closed.
        """
        self._requeue_stale()
        asked: list[Trial] = []
        structure: dict[str, Any] = {}
        while len(asked) < most and self._has_room():
            trial = self._study.ask()
            heartbeats.enter_context(get_heartbeat_thread(trial._trial_id, self._storage))  # noqa: SLF001
            self._seen.add(trial.number)
            # Two processes may have seen the same last free place: the larger number gives way.
            earlier = [other for other in self.known() if other.number < trial.number and _counts(other)]
            if len(earlier) >= self._trials:
                self._study.tell(trial, state=TrialState.FAIL)
                break
            self._study.sampler = self._sampler(trial.number, structure)
            for name, distribution in self._space.distributions.items():
                _suggest(trial, name, distribution)
            asked.append(trial)
            structure = structure or self._space.structure(trial.params)
        return asked

    def requeue(self, trials: Sequence[Trial]) -> None:
        """Queue trials again that could not be finished."""
        for trial in trials:
            with suppress(UpdateFinishedTrialError):  # another process took it for dead
                self._study.tell(trial, state=TrialState.FAIL)
                self._study.enqueue_trial(trial.params)

    def _sampler(self, number: int, structure: Mapping[str, Any]) -> BaseSampler:
        (seed,) = np.random.SeedSequence([self._seed, number]).generate_state(1)
        sampler = TPESampler(seed=int(seed))
        return PartialFixedSampler(dict(structure), sampler) if structure else sampler

    def _has_room(self) -> bool:
        known = self.known()
        waiting = any(trial.state == TrialState.WAITING for trial in known)
        return waiting or sum(map(_counts, known)) < self._trials

    def _requeue_stale(self) -> None:
        fail_stale_trials(self._study)
        for trial in self.known():
            if trial.state == TrialState.RUNNING and trial.number not in self._seen:
                # A process that died before its first heartbeat would never count as dead.
                self._seen.add(trial.number)
                if isinstance(self._storage, RDBStorage):
                    self._storage.record_heartbeat(trial._trial_id)  # noqa: SLF001


def _suggest(trial: Trial, name: str, distribution: Distribution) -> None:
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    else:
        trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _is_done(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE or _DIVERGED in trial.user_attrs


def _counts(trial: FrozenTrial) -> bool:
    return _is_done(trial) or trial.state in (TrialState.RUNNING, TrialState.WAITING)


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's progress messages, and its warnings about heartbeats outside ``Study.optimize``."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _parse_url(address: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise InputError(
            f"--storage {address}: expected the address of a database, such as sqlite:///mine.db or "
            "postgresql://user@host/db."
        ) from error
    if url.get_backend_name() == "sqlite" and url.database:
        folder = Path(url.database).expanduser().parent
        if not folder.is_dir():
            raise InputError(f"--storage {address}: there is no folder {folder}.")
    return url


def _connect(url: URL, heartbeat: int) -> RDBStorage:
    def connect() -> RDBStorage:
        return RDBStorage(
            url.render_as_string(hide_password=False),
            engine_kwargs={"connect_args": {"timeout": _BUSY}} if url.get_backend_name() == "sqlite" else {},
            heartbeat_interval=heartbeat,
            grace_period=_GRACE * heartbeat,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=_MAX_RETRIES),
        )

    try:
        return connect()
    except SQLAlchemyError as error:
        # Two processes that start at once both create the tables; the slower one tries again.
        if not any(sign in str(error).lower() for sign in ("already exists", "unique")):
            raise
        time.sleep(1)
        return connect()


@contextmanager
def _helpers(search: Search, number: int) -> Iterator[None]:
    """Run more processes that work on the same study."""
    threads = torch.get_num_threads()
    context = get_context("spawn")
    processes = [context.Process(target=_help, args=(search, number + 1), daemon=True) for _ in range(number)]
    if number:
        torch.set_num_threads(_threads(number + 1))
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
        torch.set_num_threads(threads)


def _threads(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def _help(search: Search, workers: int) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # as in `cli.main`
    torch.set_num_threads(_threads(workers))
    with suppress(KeyboardInterrupt), quiet_optuna():
        search.work(search.open(), lambda _: None, lambda _: None)


def trials_frame(trials: Sequence[FrozenTrial], space: Space, measure: str) -> pd.DataFrame:
    """Return one row per finished trial, then one per vanilla model of each structure.

    Columns are ``trial`` (empty for vanilla models), the space's parameters, ``val_acc``, the measure,
    ``val_balanced_acc`` and ``val_positive_share``, means over seeds with their ``_std``, and the numbers
    of ``models``, of ``constant_models``, which give every validation row the same decision, and of
    ``idle_models``, whose kept epoch is one of pretraining.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        reasons = [trial.user_attrs[_DIVERGED] for trial in trials if _DIVERGED in trial.user_attrs]
        raise InputError(f"no trial could be measured: {(reasons or ['none is finished'])[0]}")
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


def choose_trial(
    frame: pd.DataFrame, measure: str, max_accuracy_loss: float
) -> tuple[pd.Series, list[str]]:
    """Return the eligible row with the smallest measure, and the rejected rows with the reason.

    Budget and eligibility are those of the grid, relative to the best vanilla model.
    """
    rows = frame.assign(adversary_lr=0.0, removed="")  # trials have neither
    vanilla = reference(rows)
    if vanilla is None:
        raise InputError("the study has no vanilla model to compare with: name another --study.")
    within = eligible(rows, vanilla, max_accuracy_loss)
    order = within.settings.sort_values([measure, ACCURACY], ascending=[True, False], kind="stable")
    rejected = [f"{trial_name(frame.loc[index])}: {reason}" for index, reason in within.rejected.items()]
    return frame.loc[order.index[0]], rejected


def trial_name(row: pd.Series) -> str:
    """Return the name of a row of :func:`trials_frame`."""
    return "vanilla" if pd.isna(row["trial"]) else f"trial {int(row['trial'])}, eta {row['eta']:.3g}"


def params_of(row: pd.Series, space: Space) -> dict[str, Any]:
    """Return the parameters of a row of :func:`trials_frame` as plain values."""
    found = {name: row[name] for name in ("eta", *space.distributions) if not pd.isna(row.get(name))}
    return {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}
