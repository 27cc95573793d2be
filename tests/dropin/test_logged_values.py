"""What is logged of an attached penalty: the mean over the batches of its own epoch."""

from __future__ import annotations

from typing import Any

import pytest
from lightning import Callback, Trainer

from tests.dropin.twins import Foreign, fit, make_penalty, own_callbacks


class Logged(Callback):
    """Keeps what was logged of each epoch; callbacks log it at the epoch's end."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        del pl_module
        if "train_penalty" in trainer.callback_metrics:
            self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_train_epoch_start(trainer, pl_module)


def test_each_epoch_logs_the_mean_penalty_of_its_own_batches() -> None:
    penalty, logged, seen = make_penalty(), Logged(), []
    penalty.register_forward_hook(lambda _, __, output: seen.append(output.item()))
    fit(Foreign(), *own_callbacks(penalty=penalty, module="net"), logged, max_epochs=3, max_steps=-1)
    per_epoch = len(seen) // 2  # the penalty is off in the first epoch
    assert [values["train_penalty"] for values in logged.values] == pytest.approx(
        [0.0, sum(seen[:per_epoch]) / per_epoch, sum(seen[per_epoch:]) / per_epoch]
    )
    assert "penalty/age" not in logged.values[0]
    assert logged.values[1]["penalty/age"] > 0
    assert logged.values[1]["penalty/age"] != logged.values[2]["penalty/age"]
    assert sum(logged.values[2][f"lambda/{name}"] for name in ("age", "zip", "job")) == pytest.approx(1)
