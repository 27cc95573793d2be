"""Train many models: settings times seeds, sorted into stacks that are trained once and kept as rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pandas as pd
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least, check_choice
from fairrf_lightning.experiments.results import KEY, ResultsFile, data_identity, model_identity
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stack import MakeData, Stack
from fairrf_lightning.experiments.workers import BACKENDS, Advance, train_jobs

# 125 models train at 30 model-epochs per second in one stack, at 28 in two: few enough to keep both cores
# busy, many enough to be fast. It must not depend on the number of workers, or results would.
MAX_MODELS = 80

Evaluate: TypeAlias = Callable[[Stack], dict[str, Tensor]]
Row: TypeAlias = dict[str, Any]
Model: TypeAlias = tuple[Setting, int]  # with its seed
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Job:
    """Settings to train with seeds on data; :func:`run_settings` has the same arguments."""

    make_data: MakeData
    settings: Sequence[Setting]
    seeds: Sequence[int]
    schedule: Schedule = field(default_factory=Schedule)
    weight: int = 1  # work of an epoch of one model, relative to other jobs; for example its steps
    evaluate: Evaluate = Stack.evaluate

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        epochs, without = self.schedule.epochs, self.schedule.pretrain_epochs
        if without >= epochs and any(setting.eta for setting in self.settings):
            raise InputError(
                f"epochs = {epochs}, pretrain_epochs = {without}: no epoch is left for the penalty, so that "
                "every eta would give the vanilla model. Raise epochs or lower pretrain_epochs."
            )

    @property
    def epoch_work(self) -> int:
        """Work of one epoch of all models, in units of ``weight``."""
        return len(self.settings) * len(self.seeds) * self.weight

    @property
    def work(self) -> int:
        """Work of all epochs."""
        return self.epoch_work * self.schedule.epochs

    def identities(self) -> dict[Model, Row]:
        """Return the identity of each model, in the order of settings and seeds."""
        data = self.make_data(seed=0)
        data.prepare_data()
        known = data_identity(data)
        models = [(setting, seed) for setting in self.settings for seed in self.seeds]
        return {model: model_identity(known, data, *model, self.schedule) for model in models}

    def stacks(self, models: Sequence[Model], max_models: int) -> Iterator[Job]:
        """Yield jobs of one stack each that train these of its models."""
        if not models:
            return
        # KSMOTE adds a different number of rows in each split, so its seeds cannot share batches.
        is_ksmote = self.make_data(seed=0).ksmote is not None
        for seeds in [[seed] for seed in self.seeds] if is_ksmote else [self.seeds]:
            for settings, some in plan_stacks([model for model in models if model[1] in seeds], max_models):
                yield replace(self, settings=settings, seeds=some)

    def train(self, advance: Advance) -> dict[Model, Row]:
        """Train the models of one stack and return their metrics; ``advance`` gets the work of each epoch."""
        stack = Stack(self.make_data, self.settings, self.seeds, self.schedule)
        stack.fit([LambdaCallback(on_train_epoch_end=lambda *_: advance(self.epoch_work))])
        return dict(_metrics(stack, self.evaluate(stack)))


def _metrics(stack: Stack, values: dict[str, Tensor]) -> Iterator[tuple[Model, Row]]:
    data, penalty = stack.data.parts[0], stack.module.penalty
    for p, setting in enumerate(stack.settings):
        related = setting.related_in(data)
        others = {f"penalty/{name}" for name in penalty.feature_names if name not in related}
        for s, seed in enumerate(stack.seeds):
            best = int(stack.best.best_epoch[s, p])
            row: Row = {"best_epoch": best, "method_steps": _method_steps(stack, setting, best)}
            row |= {
                name: float(value[s, p])
                for name, value in values.items()
                if name.split("_", 1)[1] not in others
            }
            weights = zip(penalty.feature_names, penalty.weights[s, p].tolist(), strict=True)
            # Without a penalty lambda has no meaning.
            row |= {f"lambda/{name}": w for name, w in weights if name in related and setting.eta > 0}
            yield (setting, seed), row


def _method_steps(stack: Stack, setting: Setting, best_epoch: int) -> int:
    """Return the number of steps with the penalty or the adversary on, up to the kept epoch."""
    steps = len(stack.data.train_dataloader())
    if not setting.eta and not setting.adversary_lr:
        return 0
    start = stack.schedule.pretrain_epochs * steps if setting.eta else setting.pretrain_steps or 0
    return max(0, (best_epoch + 1) * steps - start)


def plan_stacks(models: Sequence[Model], max_models: int) -> Iterator[tuple[list[Setting], list[int]]]:
    """Yield settings and seeds of about equally large stacks, each with one :class:`StackConfig`."""
    check_at_least(1, max_models=max_models)
    seeds_of: dict[Setting, list[int]] = defaultdict(list)
    for setting, seed in models:
        seeds_of[setting].append(seed)
    groups: dict[tuple[StackConfig, tuple[int, ...]], list[Setting]] = defaultdict(list)
    for setting, seeds in seeds_of.items():
        groups[setting.stack_config, tuple(seeds)].append(setting)
    for (_, all_seeds), settings in groups.items():
        for some in _even_parts(all_seeds, max_models):
            for chunk in _even_parts(settings, max_models // len(some)):
                yield list(chunk), list(some)


def _even_parts(items: Sequence[_Item], max_size: int) -> list[Sequence[_Item]]:
    number = -(-len(items) // max_size)
    ends = [-(-len(items) * part // number) for part in range(number + 1)]
    return [items[first:last] for first, last in pairwise(ends)]


def run_settings(
    make_data: MakeData,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None = None,
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = MAX_MODELS,
    workers: int | None = 1,
    backend: str = "loky",
    evaluate: Evaluate = Stack.evaluate,
) -> pd.DataFrame:
    """Train each setting with each seed and return one row per model.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same :class:`StackConfig` train as one stack.
        seeds: Each seed determines a split, an order of batches and an initialisation.
        schedule: Length and learning rate of training.
        path: CSV file of the results; see :func:`run_jobs` for this and the next four.
        advance: Called with a number of model-epochs when they are done.
        max_models: Maximum number of models in a stack.
        workers: Number of stacks trained in parallel.
        backend: Backend of joblib.
        evaluate: Returns the metrics of a trained stack, ``(S, P)`` by name.

    Returns:
        Columns of the setting, ``seed``, ``best_epoch``, ``method_steps`` (with the penalty or the adversary
        on, up to that epoch), ``val_...`` and ``test_...`` metrics of the best epoch, and
        ``lambda/<feature>``, in the order of settings and seeds.
    """
    job = Job(make_data, settings, seeds, schedule or Schedule(), evaluate=evaluate)
    (frame,) = run_jobs(
        [job], path=path, advance=advance, max_models=max_models, workers=workers, backend=backend
    )
    return frame


def run_jobs(
    jobs: Sequence[Job],
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = MAX_MODELS,
    workers: int | None = 1,
    backend: str = "loky",
) -> list[pd.DataFrame]:
    """Train the models of several jobs, the longest stacks first, and return a table for each job.

    A model of several jobs is trained once. An error or Ctrl-C ends all processes; finished stacks are kept.

    Args:
        jobs: The jobs.
        path: CSV file that rows are written to as they come; rows found there are not trained again.
        advance: Called with the work done, in units of the jobs' ``weight``; model-epochs by default.
        max_models: Maximum number of models in a stack; each finished stack is written.
        workers: Number of stacks trained in parallel, with one thread each; 1: in this process; ``None``: one
            per core of this machine or of the cluster. A Dask cluster always uses all its threads.
        backend: Backend of joblib: ``"loky"`` for this machine; ``"dask"``, ``"ray"`` or ``"spark"`` for a
            cluster.
    """
    check_at_least(1, workers=workers)
    check_choice("backend", backend, BACKENDS)
    advance = advance or (lambda _: None)
    results = ResultsFile(path)
    results.check_writable()
    requested = [job.identities() for job in jobs]
    known = results.keys()
    stacks: list[tuple[Job, dict[Model, Row]]] = []
    for job, identities in zip(jobs, requested, strict=True):
        missing = [model for model, row in identities.items() if row[KEY] not in known]
        known |= {identities[model][KEY] for model in missing}
        stacks += [(stack, identities) for stack in job.stacks(missing, max_models)]
    stacks.sort(key=lambda pair: -pair[0].work)
    advance(sum(job.work for job in jobs) - sum(stack.work for stack, _ in stacks))
    with closing(train_jobs([stack for stack, _ in stacks], workers, backend, advance)) as trained:
        for number, metrics in trained:
            identities = stacks[number][1]
            results.add([identities[model] | row for model, row in metrics.items()])
    return [results.select([row[KEY] for row in identities.values()]) for identities in requested]


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise unless there are seeds, each of them once."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds = {list(seeds)}: expected one or more different numbers from 0.")
