"""Run settings over seeds: sort them into stacks, train what is missing, return tidy tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.identity import data_identity, model_identity
from fairrf_lightning.experiments.job import Advance, Evaluate, Job, Row
from fairrf_lightning.experiments.results_file import ResultsFile
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stack import MakeData, Stack
from fairrf_lightning.experiments.workers import check_workers, train_jobs

# 125 models train at 30 model-epochs a second in one stack, at 28 in two: few enough for both cores to
# have work, many enough to be quick. It must not depend on the number of workers, nor do the figures then.
_MOST_MODELS = 80

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Request:
    """Settings to be trained with seeds on data.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same configuration train as one stack.
        seeds: Each seed is a split, an order of batches and an initialisation.
        schedule: How long and how fast to train.
        weight: How much work an epoch of one model is, relative to other requests: its steps, say.
        evaluate: Returns the measures of a trained stack, ``(S, P)`` by name.
    """

    make_data: MakeData
    settings: Sequence[Setting]
    seeds: Sequence[int]
    schedule: Schedule = field(default_factory=Schedule)
    weight: int = 1
    evaluate: Evaluate = Stack.evaluate

    def __post_init__(self) -> None:
        epochs, without = self.schedule.epochs, self.schedule.pretrain_epochs
        if without >= epochs and any(setting.eta for setting in self.settings):
            raise InputError(
                f"epochs = {epochs}, pretrain_epochs = {without}: no epoch is left for the penalty, so that "
                "every eta would give the vanilla model. Raise the one or lower the other."
            )

    @property
    def work(self) -> int:
        """Work in all, in the unit of ``weight``."""
        return self.weight * self.schedule.epochs * len(self.settings) * len(self.seeds)


def run_settings(
    make_data: MakeData,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None = None,
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = _MOST_MODELS,
    workers: int | None = 1,
    evaluate: Evaluate = Stack.evaluate,
) -> pd.DataFrame:
    """Train each setting with each seed and return one row for each model.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same configuration train as one stack.
        seeds: Each seed is a split, an order of batches and an initialisation.
        schedule: How long and how fast to train.
        path: CSV file that rows are written to as they come; rows found there are not trained again.
        advance: Called with a number of model-epochs whenever so many are done.
        max_models: Most models in a stack; each finished stack is written.
        workers: Processes that train stacks side by side, with one thread each; ``None`` for one a core.
            They change no figure. A script that asks for more than 1 needs the guard
            ``if __name__ == "__main__"``.
        evaluate: Returns the measures of a trained stack, ``(S, P)`` by name.

    Returns:
        Columns of the setting, ``seed``, ``best_epoch``, ``method_steps`` (with the penalty on, or the
        adversary at work, up to that epoch), ``val_...`` and ``test_...`` measures of the best epoch, and
        ``lambda/<feature>``, in the order of settings and seeds.
    """
    request = Request(make_data, settings, seeds, schedule or Schedule(), evaluate=evaluate)
    (frame,) = run_requests([request], path=path, advance=advance, max_models=max_models, workers=workers)
    return frame


def run_requests(
    requests: Sequence[Request],
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = _MOST_MODELS,
    workers: int | None = 1,
) -> list[pd.DataFrame]:
    """Train what several requests ask for, the longest stacks first, and return a table for each.

    A model that several requests ask for is trained once. Arguments are those of :func:`run_settings`.
    """
    check_workers(workers)
    advance = advance or (lambda _: None)
    results = ResultsFile(path)
    results.check_writable()
    asked = [_rows(request) for request in requests]
    known = {row["key"] for rows in asked for row in rows.values() if results.has(row["key"])}
    jobs: list[Job] = []
    for request, rows in zip(requests, asked, strict=True):
        missing = {pair: row for pair, row in rows.items() if row["key"] not in known}
        known |= {row["key"] for row in missing.values()}
        jobs += _jobs(request, missing, max_models)
    advance(sum(request.work for request in requests) - sum(job.work for job in jobs))
    train_jobs(jobs, workers, results.add, advance)
    return [results.select([row["key"] for row in rows.values()]) for rows in asked]


def _rows(request: Request) -> dict[tuple[Setting, int], Row]:
    data = request.make_data(seed=0)
    data.prepare_data()
    known = data_identity(data)
    pairs = [(setting, seed) for setting in request.settings for seed in request.seeds]
    return {
        (setting, seed): model_identity(known, data, setting, seed, request.schedule)
        for setting, seed in pairs
    }


def _jobs(request: Request, missing: dict[tuple[Setting, int], Row], max_models: int) -> Iterator[Job]:
    if not missing:
        return
    data = request.make_data(seed=0)
    # KSMOTE adds another number of rows in each split, so its seeds cannot share batches.
    together = [request.seeds] if data.ksmote is None else [[seed] for seed in request.seeds]
    for some in together:
        pairs = [pair for pair in missing if pair[1] in some]
        for settings, seeds in plan_stacks(pairs, max_models):
            rows = {(setting, seed): missing[setting, seed] for setting in settings for seed in seeds}
            shared = (request.schedule, rows, request.weight, request.evaluate)
            yield Job(request.make_data, settings, seeds, *shared)


def plan_stacks(
    pairs: Sequence[tuple[Setting, int]], max_models: int
) -> Iterator[tuple[list[Setting], list[int]]]:
    """Yield settings and seeds of about equally large stacks that cover the pairs, one config each."""
    if max_models < 1:
        raise InputError(f"max_models = {max_models}: expected 1 or more.")
    seeds_of: dict[Setting, list[int]] = defaultdict(list)
    for setting, seed in pairs:
        seeds_of[setting].append(seed)
    groups: dict[tuple[StackConfig, tuple[int, ...]], list[Setting]] = defaultdict(list)
    for setting, seeds in seeds_of.items():
        groups[setting.stack_config, tuple(seeds)].append(setting)
    for (_, all_seeds), settings in groups.items():
        for some in _even_parts(all_seeds, max_models):
            for chunk in _even_parts(settings, max_models // len(some)):
                yield list(chunk), list(some)


def _even_parts(items: Sequence[_Item], most: int) -> list[Sequence[_Item]]:
    number = -(-len(items) // most)
    ends = [-(-len(items) * part // number) for part in range(number + 1)]
    return [items[first:last] for first, last in pairwise(ends)]
