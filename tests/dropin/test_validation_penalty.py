"""A module that knows nothing of the penalty gets a validation penalty and an objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.functional import feature_penalties, lambda_cost
from tests.dropin.twins import BATCH, RELATED, Foreign, fit, make_penalty, own_callbacks, table

OWNER, COLUMNS = torch.tensor([0, 1, 1, 2]), [0, 2, 1, 4]
BETA = 0.2


class Validated(Foreign):
    """Logs the task loss of validation, and nothing else."""

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch["target"]))


def validation() -> TensorBatches:
    return TensorBatches(table(), 67)  # five batches, the last one shorter


def measured(module: Foreign) -> tuple[Tensor, Tensor]:
    """Return the task loss and R of all validation rows, by hand."""
    rows = table()
    with torch.no_grad():
        logits = module.net(rows["inputs"])
        found = feature_penalties(logits.squeeze(1).sigmoid(), rows["inputs"][:, COLUMNS], OWNER, 3)
        return module.task(logits, rows), found


def callbacks(penalty: RelatedFeaturePenalty, **options: Any) -> list[Callback]:
    update = LambdaUpdateCallback(BETA, 10, penalty=penalty, **{"module": "net"} | options)
    return [PretrainCallback(epochs=1), update]


def validated(module: Foreign, penalty: RelatedFeaturePenalty, *more: Callback, **options: Any) -> Trainer:
    trained = {"max_steps": -1, "max_epochs": 3, "validation": validation()}
    return fit(module, *callbacks(penalty), *more, **trained | options)


def test_penalty_and_objective_are_those_of_all_validation_rows() -> None:
    module, penalty = Validated(), make_penalty()
    trainer = validated(module, penalty)
    loss, found = measured(module)
    logged = trainer.callback_metrics
    assert float(logged["val_penalty"]) == pytest.approx(2.0 * float(penalty.weights @ found), rel=1e-5)
    expected = float(loss) + 2.0 * float(lambda_cost(found, BETA))
    assert float(logged["val_objective"]) == pytest.approx(expected, rel=1e-5)
    assert float(logged["val_loss"]) == pytest.approx(float(loss), rel=1e-5)


def test_it_is_measured_while_pretraining_and_changes_nothing() -> None:
    """One row is left for the last validation batch: no covariance of its own, but it counts."""
    module, plain, penalty = Validated(), Validated(), make_penalty()
    trainer = validated(module, penalty, max_epochs=1, validation=TensorBatches(table(), 47))
    _, found = measured(module)
    assert float(trainer.callback_metrics["val_penalty"]) == pytest.approx(2 * float(found.mean()), rel=1e-5)
    fit(plain, max_steps=-1, max_epochs=1, validation=validation())
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("hook", ["own", "renamed"])
def test_the_objective_is_never_that_of_another_validation(hook: str) -> None:
    """A loss that is logged after the callback's hook would be the one of the epoch before."""

    class Late(Validated):
        def validation_step(self, batch: dict[str, Tensor]) -> None:
            self.last = self.loss(batch)
            if hook == "renamed":
                self.log("loss/val", self.last, batch_size=len(batch["target"]))

        def on_validation_epoch_end(self) -> None:
            if hook == "own":
                self.log("val_loss", self.last)

    module, penalty = Late(), make_penalty()
    own = callbacks(penalty, **{"val_loss": "loss/val"} if hook == "renamed" else {})
    trainer = fit(module, *own, max_steps=-1, max_epochs=2, validation=validation())
    assert "val_penalty" in trainer.callback_metrics
    assert ("val_objective" in trainer.callback_metrics) is (hook == "renamed")


def test_the_penalties_of_two_submodules_add_up() -> None:
    first, second = make_penalty(), make_penalty(eta=0.5)
    module = Validated()
    updates = [
        LambdaUpdateCallback(BETA, 10, penalty=first, module="net"),
        LambdaUpdateCallback(BETA, 10, penalty=second, module="net.2", inputs="inputs"),
    ]
    trainer = fit(module, *updates, max_steps=-1, max_epochs=2, validation=validation())
    loss, found = measured(module)
    assert {"val_penalty/net", "val_penalty/net.2"} <= set(trainer.callback_metrics)
    expected = float(loss) + 2.5 * float(lambda_cost(found, BETA))
    assert float(trainer.callback_metrics["val_objective"]) == pytest.approx(expected, rel=1e-5)


def test_projects_callbacks_can_monitor_the_objective(tmp_path: Path) -> None:
    """No warning, and the chosen epoch is not one of pretraining."""
    keep = ModelCheckpoint(tmp_path, monitor="val_objective")
    stop = EarlyStopping("val_objective", patience=20)
    validated(Validated(), make_penalty(), keep, stop, enable_checkpointing=True)
    assert int(torch.load(keep.best_model_path, weights_only=True)["epoch"]) > 0


class NotCalled(Validated):
    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("val_loss", batch["inputs"].mean(), batch_size=len(batch["target"]))


class OtherRows(Validated):
    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.net(batch["inputs"].unsqueeze(1))


def test_a_validation_that_cannot_be_measured_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="val_penalty is not logged: predictions of shape") as caught:
        trainer = validated(OtherRows(), make_penalty())
    assert len([w for w in caught if "val_penalty" in str(w.message)]) == 1
    assert not {"val_penalty", "val_objective"} & set(trainer.callback_metrics)
    assert "train_penalty" in trainer.callback_metrics


def test_a_validation_without_predictions_has_no_penalty() -> None:
    logged = validated(NotCalled(), make_penalty(), max_epochs=1).callback_metrics
    assert "val_loss" in logged
    assert not {"val_penalty", "val_objective"} & set(logged)


def test_twins_have_the_columns_that_this_file_computes_by_hand() -> None:
    assert list(RELATED.values()) == [[0], [2, 1], [4]]
    assert len(table()["target"]) % BATCH


class Logged(Callback):
    """Keeps what was logged of each epoch; callbacks log it at the epoch's end."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if "train_penalty" in trainer.callback_metrics:
            self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_train_epoch_start(trainer, pl_module)


def test_each_epoch_logs_the_mean_penalty_of_its_own_batches() -> None:
    penalty, logged, seen = make_penalty(), Logged(), []
    penalty.register_forward_hook(lambda _, __, output: seen.append(output.item()))
    fit(Foreign(), *own_callbacks(penalty=penalty, module="net"), logged, max_epochs=3, max_steps=-1)
    per_epoch = len(seen) // 3
    assert seen[:per_epoch] == [0.0] * per_epoch  # the penalty is off in the first epoch
    seen = seen[per_epoch:]
    assert [values["train_penalty"] for values in logged.values] == pytest.approx(
        [0.0, sum(seen[:per_epoch]) / per_epoch, sum(seen[per_epoch:]) / per_epoch]
    )
    assert "penalty/age" not in logged.values[0]
    assert logged.values[1]["penalty/age"] > 0
    assert logged.values[1]["penalty/age"] != logged.values[2]["penalty/age"]
    assert sum(logged.values[2][f"lambda/{name}"] for name in ("age", "zip", "job")) == pytest.approx(1)
