"""Where the trials are kept: a SQLite file or any database that Optuna takes, with heartbeats."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fairrf_lightning.errors import InputError

_GRACE = 3  # heartbeats that may be missed before a trial is taken for dead
_RETRIES = 3
_BUSY = 60  # seconds that a process waits while another one writes to a SQLite file
_IDENTITY = "sweep"


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep back Optuna's chatter, and its notes on ask-and-tell with heartbeats, which we send ourselves."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class Store(NamedTuple):
    """A study and its database."""

    study: optuna.Study
    storage: RDBStorage


def open_store(address: str, name: str, identity: Mapping[str, Any], heartbeat: int) -> Store:
    """Create a study, or go on with the one of that name.

    Args:
        address: The database, such as ``sqlite:///mine.db`` or ``postgresql://user@host/db``.
        name: The study's name.
        identity: What decides on the figures of its trials, as plain values; a study that was started
            with another one is refused.
        heartbeat: Seconds between signs of life of a running trial.
    """
    url = _parse(address)
    try:
        storage = _connect(url, heartbeat)
        study = optuna.create_study(
            storage=storage, study_name=name, directions=["maximize", "minimize"], load_if_exists=True
        )
    except ImportError as error:
        reason = str(error.__cause__ or error)
        raise InputError(f"--storage {url}: the database's driver is not installed: {reason}.") from error
    except (SQLAlchemyError, StorageInternalError, RuntimeError, sqlite3.Error) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise InputError(f"--storage {url}: this database cannot be used: {reason}") from error
    _check_identity(study, identity, url)
    return Store(study, storage)


def _parse(address: str) -> URL:
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
    options = {"connect_args": {"timeout": _BUSY}} if url.get_backend_name() == "sqlite" else {}
    try:
        return _storage(url, options, heartbeat)
    except SQLAlchemyError as error:
        # Two processes that start at once both create the tables; the slower one looks again.
        if not any(sign in str(error).lower() for sign in ("already exists", "unique")):
            raise
        time.sleep(1)
        return _storage(url, options, heartbeat)


def _storage(url: URL, options: dict[str, Any], heartbeat: int) -> RDBStorage:
    return RDBStorage(
        url.render_as_string(hide_password=False),
        engine_kwargs=options,
        heartbeat_interval=heartbeat,
        grace_period=_GRACE * heartbeat,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES),
    )


def _check_identity(study: optuna.Study, identity: Mapping[str, Any], url: URL) -> None:
    known = study.user_attrs.get(_IDENTITY)
    if known is None:
        study.set_user_attr(_IDENTITY, dict(identity))
        return
    different = [name for name in {**known, **identity} if known.get(name) != identity.get(name)]
    if different:
        raise InputError(
            f"the study '{study.study_name}' in {url} was started with other options "
            f"({', '.join(different)}): give the same ones, or name another --study."
        )


class Heartbeat:
    """Signs of life of running trials, from a thread, while the context lasts.

    Args:
        storage: The database.
        trial_ids: Ids of the trials.
    """

    def __init__(self, storage: RDBStorage, trial_ids: Sequence[int]) -> None:
        self._storage = storage
        self._ids = list(trial_ids)
        self._stop = Event()
        self._thread = Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._storage.heartbeat_interval):
            sign_of_life(self._storage, self._ids)


def sign_of_life(storage: RDBStorage, trial_ids: Sequence[int]) -> None:
    """Record that trials are alive; a database that is busy is told with the next sign."""
    with suppress(SQLAlchemyError, StorageInternalError):
        for trial_id in trial_ids:
            storage.record_heartbeat(trial_id)
