"""Optuna's side of a sweep: the database, heartbeats, and trials that several processes share."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages._heartbeat import BaseHeartbeat, get_heartbeat_thread
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.space import Distribution, Space

DIVERGED = "diverged"  # a user attribute with the reason
_IDENTITY = "sweep"
_BEAT = "heartbeat"  # a system attribute of a trial in a journal, with another value at each heartbeat
_GRACE = 3  # heartbeats that may be missed before a trial counts as dead
_MAX_RETRIES = 3
_BUSY = 60  # seconds that a process waits while another one writes to a SQLite file


def open_study(
    storage: str | Path | None, name: str, identity: Mapping[str, Any], heartbeat: int
) -> optuna.Study:
    """Create a study, or load the one of that name.

    Raises:
        InputError: If the database cannot be used, or the study has another identity.
    """
    if isinstance(storage, Path):
        storage.parent.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{storage}"
    url = None if storage is None else _parse_url(storage)
    try:
        study = optuna.create_study(
            storage=None if url is None else _connect(url, heartbeat),
            study_name=name,
            directions=["maximize", "minimize"],
            load_if_exists=True,
        )
    except ImportError as error:
        reason = str(error.__cause__ or error)
        raise InputError(f"--storage {url}: the database's driver is not installed: {reason}.") from error
    except (SQLAlchemyError, StorageInternalError, RuntimeError, OSError, sqlite3.Error) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise InputError(f"--storage {url}: this database cannot be used: {reason}") from error
    known = study.user_attrs.get(_IDENTITY)
    if known is None:
        study.set_user_attr(_IDENTITY, dict(identity))
    elif different := [key for key in {**known, **identity} if known.get(key) != identity.get(key)]:
        raise InputError(
            f"the study '{name}' in {url} was started with other options "
            f"({', '.join(different)}): give the same ones, or name another --study."
        )
    return study


def _parse_url(address: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise InputError(
            f"--storage {address}: expected an address such as sqlite:///mine.db, "
            "journal:////shared/mine.log or postgresql+psycopg://user@host/db."
        ) from error
    if url.get_backend_name() in ("sqlite", "journal") and url.database:
        folder = Path(url.database).expanduser().parent
        if not folder.is_dir():
            raise InputError(f"--storage {address}: there is no folder {folder}.")
    return url


def _connect(url: URL, heartbeat: int) -> BaseStorage:
    retry = RetryHeartbeatStaleTrialCallback(max_retry=_MAX_RETRIES)
    if url.get_backend_name() == "journal":
        return HeartbeatJournal(Path(url.database or "").expanduser(), heartbeat, _GRACE * heartbeat, retry)
    connect = partial(
        RDBStorage,
        url.render_as_string(hide_password=False),
        engine_kwargs={"connect_args": {"timeout": _BUSY}} if url.get_backend_name() == "sqlite" else {},
        heartbeat_interval=heartbeat,
        grace_period=_GRACE * heartbeat,
        heartbeat_stale_trial_callback=retry,
    )
    try:
        return connect()
    except (SQLAlchemyError, StorageInternalError) as error:
        # Two processes that start at once both create the tables; the slower one tries again.
        if not any(sign in f"{error} {error.__cause__}".lower() for sign in ("already exists", "unique")):
            raise
        time.sleep(1)
        return connect()


class HeartbeatJournal(JournalStorage, BaseHeartbeat):
    """Optuna's journal, a file that machines share, with the heartbeat that Optuna has for databases only.

    A trial is dead if its heartbeat has not changed for ``grace_period`` seconds by the clock of the process
    that looks. So the clocks of the machines may differ.
    """

    def __init__(
        self, path: Path, interval: int, grace_period: int, retry: RetryHeartbeatStaleTrialCallback
    ) -> None:
        super().__init__(JournalFileBackend(str(path)))
        self._interval, self._grace_period, self._retry = interval, grace_period, retry
        self._seen: dict[int, tuple[str | None, float]] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        with suppress(UpdateFinishedTrialError):  # it has just finished
            self.set_trial_system_attr(trial_id, _BEAT, uuid4().hex)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now, stale = time.monotonic(), []
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            beat, trial_id = trial.system_attrs.get(_BEAT), trial._trial_id  # noqa: SLF001 - no public id
            known, since = self._seen.setdefault(trial_id, (beat, now))
            if known != beat:
                self._seen[trial_id] = beat, now
            elif now - since > self._grace_period:
                stale.append(trial_id)
        return stale

    def get_heartbeat_interval(self) -> int:
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        return self._retry


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


class TrialQueue:
    """The trials of a study that several processes may work on.

    A trial follows from the seed, its number and the trials known by then. So a sweep in one process can be
    repeated, and processes never draw the same numbers.
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
            heartbeat = get_heartbeat_thread(trial._trial_id, self._storage)  # noqa: SLF001 - no public id
            heartbeat.start()
            heartbeats.callback(heartbeat.join)
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
                if isinstance(self._storage, BaseHeartbeat):
                    self._storage.record_heartbeat(trial._trial_id)  # noqa: SLF001


def _suggest(trial: Trial, name: str, distribution: Distribution) -> None:
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    else:
        trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _is_done(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE or DIVERGED in trial.user_attrs


def _counts(trial: FrozenTrial) -> bool:
    return _is_done(trial) or trial.state in (TrialState.RUNNING, TrialState.WAITING)
