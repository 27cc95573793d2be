"""One stack as a piece of work that any process can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.experiments.stack import MakeData, Stack

Advance: TypeAlias = Callable[[int], None]
Evaluate: TypeAlias = Callable[[Stack], dict[str, Tensor]]
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A stack to be trained, and what is known of its models beforehand.

    Args:
        make_data: Returns the data module of a seed.
        settings: Settings with one stack configuration.
        seeds: Seeds that each setting is trained with.
        schedule: How long and how fast to train.
        rows: The first columns of the row of results of each model.
        weight: How much work an epoch of one model is, relative to other jobs.
        evaluate: Returns the measures of the trained stack, ``(S, P)`` by name.
    """

    make_data: MakeData
    settings: list[Setting]
    seeds: list[int]
    schedule: Schedule
    rows: dict[tuple[Setting, int], Row]
    weight: int = 1
    evaluate: Evaluate = Stack.evaluate

    @property
    def epoch_work(self) -> int:
        """Work of one epoch of all models."""
        return len(self.settings) * len(self.seeds) * self.weight

    @property
    def work(self) -> int:
        """Work in all."""
        return self.epoch_work * self.schedule.epochs

    def train(self, advance: Advance, check: Callable[[], None] = lambda: None) -> list[Row]:
        """Train the models and return their rows.

        Args:
            advance: Called with the work done whenever an epoch is over.
            check: Called in each step; what it raises ends the training.
        """
        check()
        stack = Stack(self.make_data, self.settings, self.seeds, self.schedule)
        stack.fit([_Report(lambda: advance(self.epoch_work), check)])
        return list(_measured(stack, self.evaluate(stack), self.rows))


class _Report(Callback):
    def __init__(self, epoch_done: Callable[[], None], check: Callable[[], None]) -> None:
        self._epoch_done = epoch_done
        self._check = check

    def on_train_batch_start(self, *_: Any) -> None:
        self._check()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self._epoch_done()


def _measured(stack: Stack, values: dict[str, Tensor], rows: dict[tuple[Setting, int], Row]) -> Iterator[Row]:
    data, penalty = stack.data.parts[0], stack.module.penalty
    for p, setting in enumerate(stack.settings):
        related = setting.related_in(data)
        others = {f"penalty/{name}" for name in penalty.feature_names if name not in related}
        for s, seed in enumerate(stack.seeds):
            best = int(stack.best.best_epoch[s, p])
            row = dict(rows[setting, seed])
            row |= {"best_epoch": best, "method_steps": _method_steps(stack, setting, best)}
            row |= {
                name: float(value[s, p])
                for name, value in values.items()
                if name.split("_", 1)[1] not in others
            }
            weights = zip(penalty.feature_names, penalty.weights[s, p].tolist(), strict=True)
            # Without a penalty lambda has no meaning.
            row |= {f"lambda/{name}": w for name, w in weights if name in related and setting.eta > 0}
            yield row


def _method_steps(stack: Stack, setting: Setting, best_epoch: int) -> int:
    """Return the steps with the penalty on, or the adversary at work, in the weights that were kept."""
    steps = len(stack.data.train_dataloader())
    if not setting.eta and not setting.adversary_lr:
        return 0
    start = stack.schedule.pretrain_epochs * steps if setting.eta else setting.pretrain_steps
    return max(0, (best_epoch + 1) * steps - start)
