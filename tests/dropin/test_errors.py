"""A module that cannot be served gets one error that says what to change, and is left as it was."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.callbacks.dropin.batch_parts import batch_part
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from tests.dropin.training_steps import Forward, Manual, TwoOptimisers
from tests.dropin.twins import Foreign, assert_untouched, fit, make_penalty, own_callbacks, table


class Detached(Foreign):
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            self.net(batch["inputs"])
        return self.task(self.net[2](self.net[1](self.net[0](batch["inputs"]))), batch)


class ReturnsTuple(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, inputs: Tensor) -> tuple[Tensor]:
        return (self.inner(inputs),)


class TupleOutput(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.net = ReturnsTuple(self.net)  # type: ignore[assignment]

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task(self.net(batch["inputs"])[0], batch)


class ByKeyword(Foreign):
    """Hands its net no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = self.net
        self.reader = Reader(self.net)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task(self.reader(batch), batch)


class Reader(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.net(batch["inputs"])
        return logits


class PlainBackward(Manual):
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Images(Foreign):
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task(self.net(batch["inputs"].unsqueeze(1)).squeeze(1), batch)


ROW = TensorBatches({name: value[:1] for name, value in table().items()}, 1)


@pytest.mark.parametrize(
    ("module", "attach", "message"),
    [
        (
            Foreign(),
            {"module": None},
            r"no prediction was captured: self\(\.\.\.\) was not called.*'net', 'net\.0'",
        ),
        (
            Foreign(),
            {"module": "nett"},
            r"module = 'nett': Foreign has no such submodule or method; did you mean 'net'.*It has",
        ),
        (Foreign(), {"module": "xyz"}, r"no such submodule or method; It has: 'net', 'net\.0'(?!.* more)"),
        (Foreign(), {"module": ""}, "module = ''"),
        (TupleOutput(), {}, r"\(It was, and returned a tuple, which is no prediction.*'net\.inner'"),
        (Detached(), {}, "does not require grad.*no_grad.*module="),
        (
            Foreign(),
            {"penalty": {"age": [0], "zip": [6, 1]}},
            r"related = \{'zip': \[6, 1\]\}: .* columns 0 to 5",
        ),
        (Foreign(), {"data": ROW}, "batches of one row: .*batch_size"),
        (
            Foreign(),
            {"inputs": "metdata"},
            "inputs = 'metdata': the batch has no 'metdata'; choices: inputs, target",
        ),
        (Foreign(), {"inputs": lambda batch: batch["inputs"][:3]}, "has 3 rows and the prediction 16"),
        (Foreign(), {"inputs": lambda _: 3}, "expected a tensor there, found int"),
        (Images(), {}, r"expected \(N,\), \(N, 1\) or \(N, P\)"),
        (Foreign(outputs=3), {}, r"shape \(16, 3\) may be 3 classes.*output="),
        (
            Foreign(),
            {"inputs": lambda batch: batch["inputs"][:, None]},
            r"shape \(16, 1, 6\).*The batch has: 'inputs' \(16, 6\), 'target' \(16,\)",
        ),
        (ByKeyword(), {"module": "reader"}, "not called with a tensor of rows.*add inputs='inputs'"),
        (TwoOptimisers(), {}, "TwoOptimisers has 2 optimisers: .* backward=0"),
        (Foreign(), {"backward": 1}, "backward = 1: with automatic optimisation there is one"),
        (Manual(), {"backward": 3}, "no backward pass: backward = 3, but a training step had 1"),
        (PlainBackward(), {}, r"no backward pass.*self\.manual_backward\(loss\)"),
        (FairRFModule(6, {"age": [0]}), {"module": "backbone"}, "FairRFModule holds a RelatedFeaturePenalty"),
    ],
)
def test_one_error_says_what_to_change(module: Any, attach: dict[str, Any], message: str) -> None:
    task = (
        module.loss(next(iter(ROW)))
        if module.__class__ is Foreign and module.net[2].out_features == 1
        else None
    )
    attach = {"module": "net", **attach}
    penalty = RelatedFeaturePenalty(attach.pop("penalty", {"age": [0]}))
    data = attach.pop("data", TensorBatches(table(), 16, shuffle=True))
    # Also while the penalty is off: nobody wants to learn of it after an hour of pretraining.
    own = [PretrainCallback(epochs=9), LambdaUpdateCallback(penalty=penalty, **attach)]
    with pytest.raises(InputError, match=message):
        fit(module, *own, data=data)
    assert_untouched(module)
    if task is not None:
        assert module.loss(next(iter(ROW))).isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module": "net"}, "module = 'net' is for a penalty that this callback attaches"),
        ({"backward": 0}, "backward = 0 is for a penalty"),
        ({"penalty": make_penalty(), "backward": -1}, "backward = -1"),
        ({"penalty": make_penalty(given="positives")}, "given='positives' needs the labels.*target="),
    ],
)
def test_arguments_are_checked_when_they_are_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LambdaUpdateCallback(**options)


@pytest.mark.parametrize("callback", [PretrainCallback(epochs=1), LambdaUpdateCallback()])
def test_a_module_without_a_penalty_is_told_how_to_attach_one(callback: Callback) -> None:
    found = f"{type(callback).__name__} found no RelatedFeaturePenalty in Foreign: "
    with pytest.raises(InputError, match=rf"{found}.*LambdaUpdateCallback\(penalty=.*self\.fairness"):
        fit(Foreign(), callback)


def test_parts_of_a_batch() -> None:
    rows = torch.ones(2, 3)
    assert batch_part((0, rows), -1, "inputs") is rows
    assert batch_part(SimpleNamespace(meta=rows), "meta", "inputs") is rows
    assert batch_part({"meta": rows}, "meta", "inputs") is rows
    assert batch_part(rows, lambda batch: batch, "inputs") is rows
    assert batch_part([{"payload": SimpleNamespace(amount=rows)}], "0.payload.amount", "inputs") is rows
    assert batch_part({"a.b": rows, 3: rows + 1}, "a.b", "inputs") is rows
    assert batch_part({3: rows}, 3, "inputs") is rows
    assert batch_part((rows,), "0.-1", "inputs").equal(rows[:, -1])
    wrong: list[tuple[Any, Any]] = [((rows,), 1), (rows, "meta"), (rows, 3), (rows[:, 0], 0), ({}, "a")]
    wrong += [((rows,), "0.a"), ({"a": {"bc": rows}}, "a.bd"), ("text", "0.0.0")]
    for batch, part in wrong:
        with pytest.raises(InputError, match=f"inputs = {part!r}"):
            batch_part(batch, part, "inputs")


class Interrupt(Callback):
    """Looks at the module in the midst of a training step, copies it, and breaks down."""

    copy: LightningModule

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 5:
            self.copy = deepcopy(pl_module)
            pickle.loads(pickle.dumps(pl_module.net))(torch.zeros(2, 6))  # noqa: S301 - our own bytes
            raise RuntimeError("power cut")


def test_a_copy_in_the_midst_of_a_step_and_a_crash_leave_nothing_behind() -> None:
    module, interrupt = Foreign(), Interrupt()
    with pytest.raises(RuntimeError, match="power cut"):
        fit(module, *own_callbacks(penalty=make_penalty(), module="net"), interrupt)
    assert_untouched(module)
    assert interrupt.copy.net(torch.zeros(2, 6)).shape == (2, 1)  # type: ignore[operator]


def test_a_backward_of_the_users_own_is_kept() -> None:
    module, calls = Foreign(), []

    def backward(loss: Tensor) -> None:
        calls.append(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    module.backward = backward  # type: ignore[method-assign]
    fit(module, *own_callbacks(penalty=make_penalty(), module="net"), max_steps=3)
    assert len(calls) == 3
    assert module.__dict__["backward"] is backward


def test_a_step_without_a_prediction_has_no_penalty() -> None:
    class Sometimes(Forward):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
            return self.loss(batch) if batch_idx % 2 == 0 else self.task(self.net(batch["inputs"]), batch)

    penalty = make_penalty()
    callback = LambdaUpdateCallback(penalty=penalty, every_n_steps=None)
    fit(Sometimes(), callback, max_steps=8)
    assert penalty.penalised_steps == 4


def test_the_penalty_and_lambda_are_logged() -> None:
    trainer = fit(Foreign(), *own_callbacks(penalty=make_penalty(), module="net"))
    by_feature = {f"{kind}/{name}" for kind in ("lambda", "penalty") for name in ("age", "zip", "job")}
    assert set(trainer.callback_metrics) == {"train_penalty", *by_feature}
    assert trainer.callback_metrics["train_penalty"] > 0
    assert trainer.callback_metrics["penalty/age"] > 0
    weights = [float(trainer.callback_metrics[f"lambda/{name}"]) for name in ("age", "zip", "job")]
    assert sum(weights) == pytest.approx(1)


class TwoHeads(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 1)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        heads = (self.net, self.other)
        return sum((self.task(head(batch["inputs"]), batch) for head in heads), torch.zeros(()))


@pytest.mark.parametrize("own", [True, False], ids=["backward on the instance", "of the class"])
def test_two_penalties_on_two_submodules(*, own: bool) -> None:
    module, alone = TwoHeads(), TwoHeads()
    alone.load_state_dict(module.state_dict())
    if own:
        module.backward = Tensor.backward  # type: ignore[method-assign]
    kept = module.__dict__.get("backward")
    penalties = {"net": make_penalty(), "other": make_penalty(eta=0.5)}
    options: dict[str, Any] = {"every_n_steps": 5}
    trainer = fit(
        module,
        *(LambdaUpdateCallback(penalty=part, module=name, **options) for name, part in penalties.items()),
    )
    assert module.__dict__.get("backward") is kept
    assert not any(part._forward_hooks for part in module.modules())
    for name, penalty in penalties.items():
        assert trainer.callback_metrics[f"lambda/age/{name}"] == penalty.weights[0]
    # The heads share no weights and Adam works element by element: each trains as with its penalty alone.
    fit(alone, LambdaUpdateCallback(penalty=make_penalty(), module="net", **options))
    assert all(map(torch.allclose, module.net.parameters(), alone.net.parameters()))
    assert not torch.allclose(module.other.weight, alone.other.weight)


def test_the_penalties_of_an_epoch_without_an_update_are_those_of_its_rows() -> None:
    penalty = make_penalty()
    callback = LambdaUpdateCallback(penalty=penalty, module="net", every_n_steps=None)
    metrics = fit(Foreign(), callback, max_steps=7).callback_metrics
    pending = penalty.pending_penalties()
    assert pending is not None
    assert torch.stack([metrics[f"penalty/{name}"] for name in penalty.feature_names]).equal(pending)


def test_a_checkpoint_of_other_features_is_refused(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path)
    options: dict[str, Any] = {"enable_checkpointing": True, "max_steps": -1, "max_epochs": 1}
    fit(Foreign(), keep, LambdaUpdateCallback(penalty=make_penalty(), module="net"), **options)
    other = RelatedFeaturePenalty({"age": [0], "height": [3]})
    with pytest.raises(InputError, match="lambda for age, zip, job, the penalty is for age, height"):
        fit(
            Foreign(),
            ModelCheckpoint(tmp_path / "new"),
            LambdaUpdateCallback(penalty=other, module="net"),
            ckpt_path=keep.best_model_path,
            enable_checkpointing=True,
        )


class EnginePrecision(Precision):
    """Runs the backward pass itself, as DeepSpeed does."""

    def backward(self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        del model, optimizer, args, kwargs
        tensor.backward()  # type: ignore[no-untyped-call]


def test_a_strategy_that_runs_backward_itself_is_refused() -> None:
    with pytest.raises(InputError, match=r"SingleDeviceStrategy does not call LightningModule\.backward"):
        fit(Foreign(), *own_callbacks(penalty=make_penalty(), module="net"), plugins=[EnginePrecision()])


class TeacherAfterwards(Foreign):
    """Calls ``forward`` by its name, and then the module without gradients."""

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net.forward(batch["inputs"])  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.net(batch["inputs"])
        return self.task(logits, batch)


def test_a_call_without_gradients_drops_no_prediction() -> None:
    penalty = make_penalty()
    fit(TeacherAfterwards(), *own_callbacks(penalty=penalty, module="net"), max_steps=30)
    assert penalty.penalised_steps
