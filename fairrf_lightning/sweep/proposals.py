"""Ask Optuna for trials, in batches that can be trained as one stack, and never for too many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from fairrf_lightning.sweep.space import Distribution, Space
from fairrf_lightning.sweep.storage import Store, quiet_optuna, sign_of_life

DIVERGED = "diverged"  # a user attribute with the reason


class Proposals:
    """The trials of a study that several processes may work on.

    What is proposed follows from the seed, the number of the trial and the trials known by then, so a
    sweep in one process can be repeated, and processes never draw the same numbers.

    Args:
        store: The study and its database.
        space: What is searched.
        trials: How many trials the study shall have when it is done.
        seed: Seed of the search.
    """

    def __init__(self, store: Store, space: Space, trials: int, seed: int = 0) -> None:
        self.study, self.storage = store
        self.space = space
        self.trials = trials
        self._seed = seed
        self._seen: set[int] = set()

    @property
    def done(self) -> int:
        """How many trials are finished: measured, or diverged."""
        return sum(_is_done(trial) for trial in self.known())

    def known(self) -> list[FrozenTrial]:
        """Return all trials that the database knows."""
        return self.study.get_trials(deepcopy=False)

    def ask(self, most: int) -> list[Trial]:
        """Return up to so many new trials, which share what the models of a stack have to share.

        Trials of processes that died come first; none are returned while other processes work on
        all that are left.
        """
        with quiet_optuna():
            self._bury_the_dead()
            asked: list[Trial] = []
            structure: dict[str, Any] = {}
            while len(asked) < most and self._has_room():
                trial = self._ask_one(structure)
                if trial is None:
                    break
                asked.append(trial)
                structure = structure or self.space.structure(trial.params)
        return asked

    def give_back(self, trials: list[Trial]) -> None:
        """Queue trials again that could not be finished, for this sweep when it goes on, or others."""
        with quiet_optuna():
            retry = RetryHeartbeatStaleTrialCallback()
            for trial in trials:
                known = self.storage.get_trial(trial._trial_id)  # noqa: SLF001 - the id is not public
                if not known.state.is_finished():
                    self.study.tell(trial, state=TrialState.FAIL)
                    retry(self.study, known)

    def _ask_one(self, structure: Mapping[str, Any]) -> Trial | None:
        trial = self.study.ask()
        sign_of_life(self.storage, [trial._trial_id])  # noqa: SLF001 - the id is not public
        self._seen.add(trial.number)
        # Two processes may have seen the same last free place: the larger number gives way.
        earlier = [other for other in self.known() if other.number < trial.number and _counts(other)]
        if len(earlier) >= self.trials:
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        self.study.sampler = self._sampler(trial.number, structure)
        for name, distribution in self.space.distributions.items():
            _suggest(trial, name, distribution)
        return trial

    def _sampler(self, number: int, structure: Mapping[str, Any]) -> BaseSampler:
        (seed,) = np.random.SeedSequence([self._seed, number]).generate_state(1)
        sampler = TPESampler(seed=int(seed))
        return PartialFixedSampler(dict(structure), sampler) if structure else sampler

    def _has_room(self) -> bool:
        known = self.known()
        waiting = any(trial.state == TrialState.WAITING for trial in known)
        return waiting or sum(_counts(trial) for trial in known) < self.trials

    def _bury_the_dead(self) -> None:
        fail_stale_trials(self.study)
        for trial in self.known():
            if trial.state == TrialState.RUNNING and trial.number not in self._seen:
                # A process that died before its first sign of life would never be missed.
                self._seen.add(trial.number)
                sign_of_life(self.storage, [trial._trial_id])  # noqa: SLF001 - the id is not public


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
