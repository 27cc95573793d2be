"""The sweep itself: ask, train, tell, until the study has its trials."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import gethostname
from statistics import mean

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from fairrf_lightning.experiments.choose import ACCURACY
from fairrf_lightning.sweep.proposals import DIVERGED, Proposals
from fairrf_lightning.sweep.storage import Heartbeat
from fairrf_lightning.sweep.training import Measured, TrialTrainer

_PAUSE = 0.5  # seconds between looks at the database while other processes finish


class Counter:
    """Moves a progress bar to where the study is, trials of other processes included.

    Args:
        move: Moves the bar on by so much.
    """

    def __init__(self, move: Callable[[float], None]) -> None:
        self._move = move
        self._shown = 0.0

    def show(self, value: float) -> None:
        """Move the bar to a value; it never goes back."""
        if value > self._shown:
            self._move(value - self._shown)
            self._shown = value


@dataclass
class Sweep:
    """Works on a study until it is done; other processes may do the same at the same time.

    Args:
        proposals: The study's trials.
        trainer: Trains them.
        batch: How many trials are trained as one stack.
        counter: Shows trial-epochs.
        after_batch: Called when results have come in.
    """

    proposals: Proposals
    trainer: TrialTrainer
    batch: int
    counter: Counter
    after_batch: Callable[[], None]

    def run(self) -> None:
        """Train until all trials are done, here or elsewhere."""
        while (done := self.proposals.done) < self.proposals.trials:
            self.counter.show(done * self.trainer.epochs)
            if trials := self.proposals.ask(self.batch):
                self._run_batch(trials)
                self.after_batch()
            else:
                time.sleep(_PAUSE)  # others work on what is left; should they die, it comes back
        self.counter.show(self.proposals.trials * self.trainer.epochs)

    def _run_batch(self, trials: list[Trial]) -> None:
        open_trials = {trial.number: trial for trial in trials}
        passed = self.proposals.done * self.trainer.epochs * 1.0

        def advance(trial_epochs: float) -> None:
            nonlocal passed
            passed += trial_epochs
            self.counter.show(passed)

        ids = [trial._trial_id for trial in trials]  # noqa: SLF001 - the id is not public
        try:
            with Heartbeat(self.proposals.storage, ids):
                for measured in self.trainer.train(trials, advance):
                    self._tell(measured)
                    del open_trials[measured.trial.number]
        finally:
            self.proposals.give_back(list(open_trials.values()))  # none, unless interrupted

    def _tell(self, measured: Measured) -> None:
        study, trial = self.proposals.study, measured.trial
        with suppress(UpdateFinishedTrialError):  # others took it for dead and have queued it again
            trial.set_user_attr("process", f"{gethostname()}:{os.getpid()}")
            if measured.reason:
                trial.set_user_attr(DIVERGED, measured.reason)
                study.tell(trial, state=TrialState.FAIL)
                return
            for name, figures in measured.values.items():
                trial.set_user_attr(name, figures)
            objectives = [mean(measured.values[name]) for name in (ACCURACY, self.trainer.objective.name)]
            study.tell(trial, objectives, skip_if_finished=True)
