"""Nothing of a batch is kept alive after it: neither its tensors nor the graph of its predictions."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from lightning import Callback
from torch import Tensor

from tests.dropin.twins import Foreign, fit, make_penalty, own_callbacks


class Watched(Foreign):
    """Predicts a second time after its loss, as a module that logs examples does."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.made: list[weakref.ref[Tensor]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        del batch_idx
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
        del trainer
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
    assert attachment._batch is None
    attachment._tap.record((), {}, torch.ones(3, requires_grad=True) * 2)
    assert attachment._tap._calls == []
