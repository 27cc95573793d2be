"""Where predictions and related columns come from: submodules, methods, parts of outputs and of batches."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.callbacks.dropin.batch_parts import comes_from
from fairrf_lightning.callbacks.dropin.wrapped_method import WrappedMethod
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from tests.dropin.twins import BATCH, RELATED, Foreign, assert_same, fit, make_penalty, table, trained

pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")


class Encoded(Foreign):
    """A head on hidden units; a copy of the batch on the way, if asked."""

    def __init__(self, prepare: Any = None) -> None:
        super().__init__()
        self.prepare = prepare or torch.nn.Identity()
        self.encoder, self.head = self.net[:2], self.net[2]

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.head(self.encoder(self.prepare(batch["inputs"])))
        return self.task(logits, batch) + self.fair_term(logits, batch)


def test_hidden_units_are_not_taken_for_related_columns() -> None:
    message = (
        r"module = 'head' was called with a tensor \(16, 8\) that is not part of the batch.*'age'.*hidden "
        r"units.*add inputs='inputs'.*The batch has: 'inputs' \(16, 6\), 'target' \(16,\)"
    )
    with pytest.raises(InputError, match=message):
        fit(Encoded(), LambdaUpdateCallback(penalty=make_penalty(), module="head"))
    assert_same(trained(Encoded, attach={"module": "head", "inputs": "inputs"}))


@pytest.mark.parametrize("prepare", [Tensor.clone, Tensor.double, lambda x: x[:, :]])
def test_copies_and_views_of_the_batch_are_part_of_it(prepare: Any) -> None:
    rows = torch.randn(4, 3)
    assert comes_from(prepare(rows), ("text", {"x": rows}))


def test_computed_tensors_are_not_part_of_the_batch() -> None:
    rows = torch.randn(4, 3)
    identity = nn.Linear(3, 3)
    nn.init.eye_(identity.weight)
    nn.init.zeros_(identity.bias)
    for made in (rows + 1, rows.half(), rows[:, [0, 1]], rows.flip(0), identity(rows)):
        assert not comes_from(made, {"x": rows})


def odd(epochs: int = 2) -> dict[str, Any]:
    """Return batches of 47 rows, the last one of one row."""
    data = TensorBatches(table(), 47)
    return {"data": data, "max_steps": -1, "max_epochs": epochs}


def test_a_last_batch_of_one_row_is_trained_without_the_penalty(caplog: pytest.LogCaptureFixture) -> None:
    penalty = make_penalty()
    with caplog.at_level(logging.INFO):
        fit(Foreign(), LambdaUpdateCallback(penalty=penalty, module="net"), **odd())
    assert penalty.penalised_steps == 2 * (330 // 47)
    assert len([r for r in caplog.records if "one row" in r.message]) == 1


class Direct(Foreign):
    """Calls ``self.forward`` by name, so that no hook runs."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.forward(batch["inputs"])
        return self.task(logits, batch) + self.fair_term(logits, batch)


class DirectSubmodule(Foreign):
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net.forward(batch["inputs"])  # type: ignore[no-untyped-call]
        return self.task(logits, batch) + self.fair_term(logits, batch)


class Predictor:
    """A plain object, no nn.Module."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def train_step(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
        logits = self.net(batch["inputs"])
        return {"logits": torch.stack([logits.squeeze(1).detach(), logits.squeeze(1)], 1)}, 3


class Method(Foreign):
    """Predicts in a method of another object, as one task of two in a dict in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = Predictor(self.net)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.predictor.train_step(batch)[0]["logits"][:, 1]
        return self.task(logits, batch) + self.fair_term(logits, batch)


def second_task(output: tuple[dict[str, Tensor], int]) -> Tensor:
    return output[0]["logits"][:, 1]


class Step(Foreign):
    """Returns its prediction from ``training_step``."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self.net(batch["inputs"])
        return {"loss": self.task(logits, batch) + self.fair_term(logits, batch), "logits": logits}


@pytest.mark.parametrize(
    ("foreign", "attach"),
    [
        pytest.param(Direct, {"module": None}, id="self.forward"),
        pytest.param(Direct, {"module": "forward"}, id="forward by name"),
        pytest.param(DirectSubmodule, {"module": "net"}, id="net.forward"),
        pytest.param(
            Method,
            {"module": "predictor.train_step", "prediction": "0.logits.1", "inputs": "inputs"},
            id="method of an object",
        ),
        pytest.param(
            Method,
            {"module": "predictor.train_step", "prediction": second_task, "inputs": "inputs"},
            id="function of the output",
        ),
        pytest.param(
            Step, {"module": "training_step", "prediction": "logits", "inputs": "inputs"}, id="training_step"
        ),
    ],
)
def test_same_bits_wherever_the_prediction_is(foreign: type[Foreign], attach: dict[str, Any]) -> None:
    assert_same(trained(foreign, attach=attach))


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (None, r"returned a tuple.*tensors are '0\.logits' \(16, 2\): add prediction='0\.logits'"),
        ("0.logit", r"prediction = '0\.logit': '0' of the output has no 'logit'; did you mean 'logits'"),
        ("1", r"prediction = '1': expected a tensor there, found int"),
    ],
)
def test_an_output_that_is_no_prediction_says_how_to_select(prediction: Any, message: str) -> None:
    options: dict[str, Any] = {"module": "predictor.train_step", "inputs": "inputs"}
    with pytest.raises(InputError, match=message):
        fit(Method(), LambdaUpdateCallback(penalty=make_penalty(), prediction=prediction, **options))


def nested(batch_size: int = BATCH) -> torch.utils.data.DataLoader[Any]:
    rows = table()
    items = [({"payload": {"amount": x}}, y) for x, y in zip(rows["inputs"], rows["target"], strict=True)]
    return torch.utils.data.DataLoader(items, batch_size)  # type: ignore[arg-type]


class Nested(Foreign):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        amount = batch[0]["payload"]["amount"]
        return super().training_step({"inputs": amount, "target": batch[1]}, batch_idx)


def test_nested_and_picklable_parts_of_the_batch() -> None:
    assert_same(
        trained(
            Nested,
            attach={"inputs": "0.payload.amount", "target": 1},
            penalty={"given": "positives"},
            data=nested,
        )
    )
    callback = LambdaUpdateCallback(penalty=make_penalty(), module="net", inputs="0.payload.amount")
    restored: LambdaUpdateCallback = pickle.loads(pickle.dumps(callback))  # noqa: S301 - our own bytes
    assert restored.state_key == callback.state_key


def test_two_penalties_on_two_parts_of_one_output() -> None:
    penalties = {part: RelatedFeaturePenalty(RELATED, eta=0.5) for part in (0, 1)}
    callbacks = [
        LambdaUpdateCallback(penalty=p, module="net", prediction=part) for part, p in penalties.items()
    ]
    assert len({callback.state_key for callback in callbacks}) == 2
    fit(Foreign(outputs=2), *callbacks, max_steps=3)
    assert [penalty.penalised_steps for penalty in penalties.values()] == [3, 3]


def test_copies_of_a_wrapped_module_run_their_own_methods() -> None:
    module: LightningModule = Direct()
    wrapped = WrappedMethod(module, "forward", lambda method, args, kwargs: 2 * method(*args, **kwargs))
    copies: tuple[Any, ...] = copy.deepcopy(module), pickle.loads(pickle.dumps(module))  # noqa: S301 - our own bytes
    rows = torch.randn(2, 6)
    whole, expected = module(rows), module(rows) / 2
    for made in copies:
        assert made(rows).equal(expected)
        nn.init.zeros_(made.net[2].weight)
    assert module(rows).equal(whole)
    wrapped.remove()
    assert "forward" not in vars(module)


class Asked(LightningDataModule):
    """Keeps which rows the penalty is computed on."""

    def train_dataloader(self) -> TensorBatches:
        return TensorBatches(table(), BATCH)

    def penalise_positives(self, *, positives: bool) -> None:
        self.positives = positives


@pytest.mark.parametrize(("given", "positives"), [("all", False), ("positives", True)])
def test_data_of_a_foreign_project_learn_which_rows_are_penalised(given: Any, *, positives: bool) -> None:
    data = Asked()
    options: dict[str, Any] = {"module": "net", "inputs": "inputs", "target": "target"}
    fit(Foreign(), LambdaUpdateCallback(penalty=make_penalty(given=given), **options), data=data, max_steps=2)
    assert data.positives is positives
