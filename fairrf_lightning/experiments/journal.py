"""Optuna's journal, a file in a folder that several machines share, with a heartbeat."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

_BEAT = "heartbeat"  # a system attribute with another value at each heartbeat


class HeartbeatJournal(JournalStorage, BaseHeartbeat):
    """A journal whose trials are taken over from dead processes, as Optuna does it for databases only.

    A trial is dead if its heartbeat has not changed for a while by the clock of the process that looks. So
    the clocks of the machines may differ.

    Args:
        path: The file.
        interval: Seconds between heartbeats.
        grace_period: Seconds without a heartbeat after which a trial counts as dead.
        retry: Queues a dead trial again.
    """

    def __init__(
        self, path: str | Path, interval: int, grace_period: int, retry: RetryHeartbeatStaleTrialCallback
    ) -> None:
        super().__init__(JournalFileBackend(str(path)))
        self._interval, self._grace_period, self._retry = interval, grace_period, retry
        self._seen: dict[int, tuple[str | None, float]] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        """Give the trial another heartbeat, unless it has just finished."""
        with suppress(UpdateFinishedTrialError):
            self.set_trial_system_attr(trial_id, _BEAT, uuid4().hex)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now, stale = time.monotonic(), []
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            beat, trial_id = trial.system_attrs.get(_BEAT), trial._trial_id  # noqa: SLF001 - no public id
            if trial_id not in self._seen or self._seen[trial_id][0] != beat:
                self._seen[trial_id] = beat, now
            elif now - self._seen[trial_id][1] > self._grace_period:
                stale.append(trial_id)
        return stale

    def get_heartbeat_interval(self) -> int:
        """Return the seconds between heartbeats."""
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        """Return what queues a dead trial again."""
        return self._retry
