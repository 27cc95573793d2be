"""Train the trials of a batch as stacks, each stack with a vanilla model beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from optuna.trial import Trial

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import DivergedError
from fairrf_lightning.experiments.choose import ACCURACY, STEPS
from fairrf_lightning.experiments.runner import run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.sweep.objective import Objective
from fairrf_lightning.sweep.space import Space

VANILLA = "vanilla_"
Figures: TypeAlias = dict[str, list[float]]  # by name, one for each seed
Advance: TypeAlias = Callable[[float], None]


@dataclass(frozen=True)
class Measured:
    """What became of a trial.

    Args:
        trial: The trial.
        values: Figures by name, one for each seed; also those of its structure with eta 0, as
            ``vanilla_...``. Empty if the model diverged.
        reason: Why there are none.
    """

    trial: Trial
    values: Figures
    reason: str = ""


@dataclass(frozen=True)
class TrialTrainer:
    """Trains trials on one split of the data.

    The seeds are those of the initial weights and the dropout masks. The split is the same for all of
    them: with a split for each seed, the test rows of one would be validation rows of another.

    Args:
        data: The data module.
        space: Tells what a trial's parameters mean.
        objective: What is measured beside accuracy.
        seeds: Seeds of the models of each trial.
        epochs: Epochs of each model.
    """

    data: TabularDataModule
    space: Space
    objective: Objective
    seeds: Sequence[int]
    epochs: int

    def train(self, trials: Sequence[Trial], advance: Advance) -> Iterator[Measured]:
        """Yield the figures of each trial, stack by stack.

        Args:
            trials: The trials; those of one structure are trained together.
            advance: Called with the trial-epochs that have passed.
        """
        stacks: dict[tuple[StackConfig, Schedule], list[Trial]] = defaultdict(list)
        for trial in trials:
            schedule = self.space.schedule(trial.params, self.epochs)
            stacks[self.space.setting(trial.params).stack_config, schedule].append(trial)
        for (_, schedule), together in stacks.items():
            yield from self._train_stack(together, schedule, advance)

    def _train_stack(
        self, trials: Sequence[Trial], schedule: Schedule, advance: Advance
    ) -> Iterator[Measured]:
        try:
            figures_of = self._figures(trials, schedule, advance)
        except DivergedError as error:
            # One model ends the stack: only its own trial shall fail.
            if len(trials) == 1:
                yield Measured(trials[0], {}, str(error))
                return
            for trial in trials:
                yield from self._train_stack([trial], schedule, advance)
            return
        for trial in trials:
            setting = self.space.setting(trial.params)
            vanilla = figures_of[_vanilla(setting)]
            values = figures_of[setting] | {VANILLA + name: figures for name, figures in vanilla.items()}
            # The balanced accuracy is not known where a class has no validation rows.
            needed = (ACCURACY, self.objective.name, VANILLA + ACCURACY, VANILLA + self.objective.name)
            finite = all(math.isfinite(figure) for name in needed for figure in values[name])
            yield Measured(trial, values) if finite else Measured(trial, {}, "its figures are not finite")

    def _figures(
        self, trials: Sequence[Trial], schedule: Schedule, advance: Advance
    ) -> dict[Setting, Figures]:
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
        names, size = (*self.objective.measures, STEPS), len(self.seeds)
        columns = {name: frame[name].tolist() for name in names}
        return {
            setting: {name: columns[name][number * size : (number + 1) * size] for name in names}
            for number, setting in enumerate(unique)
        }


def _vanilla(setting: Setting) -> Setting:
    return replace(setting, eta=0.0, beta=Setting.beta)
