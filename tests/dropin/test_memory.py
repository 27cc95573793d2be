"""Nothing of a batch is kept alive after it: neither its tensors nor the graph of its predictions."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.dropin.test_validation_penalty import BETA, Validated, callbacks, validation
from tests.dropin.twins import Foreign, fit, make_penalty, own_callbacks


class Watched(Foreign):
    """Predicts a second time after its loss, as a module that logs examples does."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.made: list[weakref.ref[Tensor]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        logits = self.net(batch["inputs"])
        self.manual_backward(self.task(logits, batch))
        optimizer.step()
        self.made = [weakref.ref(logits), weakref.ref(self.net(batch["inputs"]))]


class AfterBatch(Callback):
    """Counts the predictions that are still alive when all callbacks have seen the batch end."""

    def __init__(self) -> None:
        self.alive: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.alive.append(sum(made() is not None for made in pl_module.made))


@pytest.mark.parametrize("backward", [None, 0])
def test_predictions_are_freed_after_each_batch(backward: int | None) -> None:
    module, watch = Watched(), AfterBatch()
    attached = own_callbacks(penalty=make_penalty(), module="net", backward=backward)
    fit(module, *attached, watch, max_steps=24)
    assert watch.alive == [0] * 24


def test_batch_is_released_and_a_prediction_outside_training_is_not_kept() -> None:
    update: Any = own_callbacks(penalty=make_penalty(), module="net")[1]
    module = Foreign()
    fit(module, update, max_steps=2)
    attachment = update._attachment
    assert attachment.rows.batch is None
    attachment._tap.record((), {}, torch.ones(3, requires_grad=True) * 2)
    assert attachment._tap._calls == []


class Released(Callback):
    """Notes which of the predictions and batches of a step are still alive when it is over."""

    def __init__(self) -> None:
        self.alive: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        gc.collect()
        assert isinstance(pl_module, Remembering)
        self.alive += [name for name, ref in pl_module.seen.items() if ref() is not None]


class Remembering(Validated):
    """Keeps weak references to what a step has made."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        logits = self.net(batch["inputs"])
        self.seen: dict[str, weakref.ref[Tensor]] = {"prediction": weakref.ref(logits)}
        return self.task(logits, batch)


def test_nothing_of_a_batch_is_kept_alive_after_it() -> None:
    """A prediction carries the graph of its step; the memory of one batch would be held twice."""
    module, penalty, released = Remembering(), make_penalty(), Released()
    _, update = callbacks(penalty)
    fit(module, PretrainCallback(steps=3), update, released, max_steps=6, validation=validation())
    assert released.alive == []


class Batches(Callback):
    """Looks at what the attachment holds between batches, after the callback under test."""

    def __init__(self, update: LambdaUpdateCallback) -> None:
        assert update._attachment is not None
        self.attachment = update._attachment
        self.held: list[object] = []

    def _note(self) -> None:
        self.held += [*self.attachment._tap._calls, self.attachment.rows.batch]

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._note()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._note()


def test_the_attachment_holds_no_batch_and_no_prediction_between_batches() -> None:
    update = LambdaUpdateCallback(BETA, 10, penalty=make_penalty(), module="net")
    between = Batches(update)
    fit(Validated(), update, between, max_steps=25, validation=validation())
    assert len(between.held) == 25 + 2 + 5
    assert set(between.held) == {None}
