"""Run settings over seeds: sort them into stacks, train what is missing, return one tidy table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.results_file import ResultsFile, identity
from fairrf_lightning.experiments.setting import Recipe, Schedule, Setting
from fairrf_lightning.experiments.stack import MakeData, Stack

Advance = Callable[[int], None]
Evaluate = Callable[[Stack], dict[str, Tensor]]


class _ReportEpochs(Callback):
    """Tells how many model-epochs are done."""

    def __init__(self, advance: Advance, models: int) -> None:
        self._advance = advance
        self._models = models

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self._advance(self._models)


def run_settings(
    make_data: MakeData,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None = None,
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = 128,
    evaluate: Evaluate = Stack.evaluate,
) -> pd.DataFrame:
    """Train each setting with each seed and return one row for each model.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same recipe train as one stack.
        seeds: Each seed is a split, an order of batches and an initialisation.
        schedule: How long and how fast to train.
        path: CSV file that rows are written to as they come; rows found there are not trained again.
        advance: Called with a number of model-epochs whenever so many are done.
        max_models: Most models in a stack; each finished stack is written.
        evaluate: Returns the measures of a trained stack, ``(S, P)`` by name.

    Returns:
        Columns of the setting, ``seed``, ``best_epoch``, ``val_...`` and ``test_...`` measures of the
        best epoch, and ``lambda/<feature>``, in the order of settings and seeds.
    """
    schedule = schedule or Schedule()
    results = ResultsFile(path)
    data = make_data(seed=0)
    rows = {
        (setting, seed): identity(data, setting, seed, schedule) for setting in settings for seed in seeds
    }
    missing = {pair: row for pair, row in rows.items() if not results.has(row["key"])}
    if advance is not None:
        advance(schedule.epochs * (len(rows) - len(missing)))
    # KSMOTE adds another number of rows in each split, so its seeds cannot share batches.
    together = [seeds] if data.ksmote is None else [[seed] for seed in seeds]
    pairs = [[pair for pair in missing if pair[1] in some] for some in together]
    for chunk, chunk_seeds in chain.from_iterable(plan_stacks(some, max_models) for some in pairs):
        stack = Stack(make_data, chunk, chunk_seeds, schedule)
        models = len(chunk) * len(chunk_seeds)
        stack.fit([] if advance is None else [_ReportEpochs(advance, models)])
        results.add(list(_measured(stack, evaluate(stack), missing)))
    return results.select([row["key"] for row in rows.values()])


def plan_stacks(
    pairs: Sequence[tuple[Setting, int]], max_models: int
) -> Iterator[tuple[list[Setting], list[int]]]:
    """Yield settings and seeds of stacks that cover the pairs, each with one recipe."""
    if max_models < 1:
        raise InputError(f"max_models = {max_models}: expected 1 or more.")
    seeds_of: dict[Setting, list[int]] = defaultdict(list)
    for setting, seed in pairs:
        seeds_of[setting].append(seed)
    groups: dict[tuple[Recipe, tuple[int, ...]], list[Setting]] = defaultdict(list)
    for setting, seeds in seeds_of.items():
        groups[setting.recipe, tuple(seeds)].append(setting)
    for (_, all_seeds), settings in groups.items():
        for first in range(0, len(all_seeds), max_models):
            some = list(all_seeds[first : first + max_models])
            size = max_models // len(some)
            for start in range(0, len(settings), size):
                yield settings[start : start + size], some


def _measured(
    stack: Stack, values: dict[str, Tensor], rows: dict[tuple[Setting, int], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    data, penalty = stack.data.parts[0], stack.module.penalty
    for p, setting in enumerate(stack.settings):
        related = setting.related_in(data)
        others = {f"penalty/{name}" for name in penalty.feature_names if name not in related}
        for s, seed in enumerate(stack.seeds):
            row = dict(rows[setting, seed]) | {"best_epoch": int(stack.best.best_epoch[s, p])}
            row |= {
                name: float(value[s, p])
                for name, value in values.items()
                if name.split("_", 1)[1] not in others
            }
            weights = zip(penalty.feature_names, penalty.weights[s, p].tolist(), strict=True)
            # Without a penalty lambda has no meaning.
            row |= {f"lambda/{name}": w for name, w in weights if name in related and setting.eta > 0}
            yield row
