"""The penalty that callbacks attach trains the bits of the penalty written by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from fairrf_lightning.datamodules import TensorBatches
from tests.dropin.training_steps import (
    LBFGS,
    Checkpointed,
    Forward,
    Manual,
    ManualLBFGS,
    Regression,
    ReturnsDict,
    SavedLoss,
    SharedForward,
    SomeBatchesAreSkipped,
    TwoOptimisers,
    Validated,
)
from tests.dropin.twins import BATCH, Foreign, assert_same, fit, make_penalty, own_callbacks, table, trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*returned `None`.*"),
    pytest.mark.filterwarnings("ignore:.*collapsed onto.*"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists.*"),
]
Precision = pytest.mark.parametrize("precision", ["32-true", "64-true"])


@Precision
@pytest.mark.parametrize(
    ("foreign", "options"),
    [
        pytest.param(Foreign, {}, id="plain"),
        pytest.param(Forward, {"attach": {"module": None}}, id="own forward"),
        pytest.param(Foreign, {"accumulate_grad_batches": 3, "max_steps": 24}, id="accumulation"),
        pytest.param(Foreign, {"gradient_clip_val": 0.05}, id="clipping"),
        pytest.param(Manual, {}, id="manual"),
        pytest.param(SavedLoss, {}, id="manual, saved loss"),
        pytest.param(TwoOptimisers, {"attach": {"backward": 1}, "max_steps": 120}, id="two optimisers"),
        pytest.param(SharedForward, {"attach": {"backward": 1}}, id="two backward passes of one forward"),
        pytest.param(LBFGS, {}, id="LBFGS"),
        pytest.param(ManualLBFGS, {}, id="manual LBFGS"),
        pytest.param(Checkpointed, {}, id="gradient checkpointing"),
        pytest.param(ReturnsDict, {}, id="dict"),
        pytest.param(SomeBatchesAreSkipped, {}, id="None"),
        pytest.param(Foreign, {"module": {"outputs": 2}, "penalty": {"output": "softmax"}}, id="two logits"),
        pytest.param(Foreign, {"module": {"outputs": 3}, "penalty": {"output": "softmax"}}, id="classes"),
        pytest.param(Regression, {"penalty": {"output": "regression"}}, id="regression"),
        pytest.param(Foreign, {"penalty": {"statistic": "correlation"}}, id="correlation"),
        pytest.param(
            Foreign, {"penalty": {"given": "positives"}, "attach": {"target": "target"}}, id="positives"
        ),
    ],
)
def test_same_bits_as_by_hand(foreign: type[Foreign], options: dict[str, Any], precision: str) -> None:
    assert_same(trained(foreign, precision=precision, **options))


def test_naming_another_backward_pass_is_another_model() -> None:
    dropin, twin, *_ = trained(TwoOptimisers, attach={"backward": 0}, max_steps=120)
    assert not torch.equal(dropin.net[0].weight, twin.net[0].weight)  # type: ignore[arg-type]


def test_without_callbacks_is_another_model() -> None:
    dropin, *_ = trained()
    alone = Foreign()
    fit(alone)
    assert not torch.equal(dropin.net[0].weight, alone.net[0].weight)  # type: ignore[arg-type]


class Probabilities(Foreign):
    """Its net ends in a sigmoid or a softmax."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__(outputs)
        self.net.append(torch.nn.Sigmoid() if outputs == 1 else torch.nn.Softmax(1))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        probs = self.net(batch["inputs"])
        task = torch.nn.functional.binary_cross_entropy(probs[:, -1], batch["target"])
        return task + self.fair_term(probs, batch)


@pytest.mark.parametrize("outputs", [1, 2])
def test_probabilities(outputs: int) -> None:
    assert_same(trained(Probabilities, module={"outputs": outputs}, penalty={"output": "probability"}))


class Flat(Foreign):
    """Its net gives logits ``(N,)``."""

    def __init__(self) -> None:
        super().__init__()
        self.net.append(torch.nn.Flatten(0))


def test_flat_logits() -> None:
    assert_same(trained(Flat))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_half_precision(precision: str, accumulate: int) -> None:
    assert_same(trained(precision=precision, accumulate_grad_batches=accumulate, max_steps=60 // accumulate))


@pytest.mark.parametrize("foreign", [Foreign, Manual])
def test_fp16_with_a_gradient_scaler(foreign: type[Foreign]) -> None:
    def scaled() -> MixedPrecision:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=30)
        return MixedPrecision("16-mixed", "cpu", scaler)

    assert_same(trained(foreign, plugins=scaled))


def test_accumulation_that_changes() -> None:
    assert_same(trained(callbacks=lambda: [GradientAccumulationScheduler({0: 1, 2: 4})], max_steps=60))


def compile_net(module: Foreign) -> None:
    module.net = torch.compile(module.net, backend="aot_eager")  # type: ignore[assignment]


def compile_in_place(module: Foreign) -> None:
    module.net.compile(backend="aot_eager")


def compile_step(module: Foreign) -> None:
    module.training_step = torch.compile(module.training_step, backend="aot_eager")  # type: ignore[method-assign]


@Precision
@pytest.mark.parametrize("prepare", [compile_net, compile_in_place, compile_step])
def test_compiled(prepare: Any, precision: str) -> None:
    torch._dynamo.reset()
    assert_same(trained(prepare=prepare, precision=precision))


@pytest.mark.filterwarnings("ignore:.*does not include the penalty")
@Precision
def test_beside_other_callbacks(tmp_path: Path, precision: str) -> None:
    def beside(folder: Path) -> list[Callback]:
        return [
            StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2),
            EarlyStopping("val_loss", patience=50),
            ModelCheckpoint(folder, monitor="val_loss"),
        ]

    validation = TensorBatches(table(), 66)
    options: dict[str, Any] = {
        "max_steps": -1,
        "max_epochs": 5,
        "enable_checkpointing": True,
        "validation": validation,
    }
    options |= {"val_check_interval": 0.3, "precision": precision}
    assert_same(trained(Validated, callbacks=partial(beside, tmp_path), **options))


class Augmented(Foreign):
    """Calls the net twice before one backward pass."""

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        views = [batch["inputs"], batch["inputs"].flip(0) + 0.1]
        logits = torch.cat([self.net(view) for view in views])
        twice = {"inputs": torch.cat(views), "target": torch.cat([batch["target"], batch["target"].flip(0)])}
        return self.task(logits, twice) + self.fair_term(logits, twice)


def both_views(batch: dict[str, Tensor]) -> Tensor:
    return torch.cat([batch["inputs"], batch["inputs"].flip(0) + 0.1])


def test_several_calls_count_as_one() -> None:
    assert_same(trained(Augmented, attach={"inputs": both_views}))


METADATA = torch.randn(330, 5, generator=torch.Generator().manual_seed(7))


def metadata_of(batch: dict[str, Tensor]) -> Tensor:
    return batch["metadata"]


@pytest.mark.parametrize("inputs", ["metadata", metadata_of])
def test_related_features_beside_the_inputs(inputs: Any) -> None:
    def data() -> TensorBatches:
        return TensorBatches(table(metadata=METADATA), BATCH, shuffle=True, seed=1)

    assert_same(trained(attach={"inputs": inputs}, data=data))


class TupleBatches(Foreign):
    """Its batches are tuples (inputs, target, metadata)."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, target, metadata = batch
        return super().training_step({"inputs": inputs, "target": target, "metadata": metadata}, batch_idx)


@pytest.mark.parametrize(("inputs", "target"), [(2, 1), (-1, lambda batch: batch[1])])
def test_related_features_in_a_tuple(inputs: int, target: Any) -> None:
    def data() -> torch.utils.data.DataLoader[Any]:
        tensors = torch.utils.data.TensorDataset(*table(metadata=METADATA).values())
        order = torch.Generator().manual_seed(2)
        return torch.utils.data.DataLoader(tensors, BATCH, shuffle=True, generator=order)

    attach = {"inputs": inputs, "target": target}
    assert_same(trained(TupleBatches, attach=attach, penalty={"given": "positives"}, data=data))


@Precision
def test_a_run_that_was_killed_resumes_with_the_same_bits(tmp_path: Path, precision: str) -> None:
    def module() -> Foreign:
        # Lightning restores the weights before it makes the module double, and would round them.
        return Foreign().double() if precision == "64-true" else Foreign()

    whole, whole_penalty = module(), make_penalty()
    fit(whole, *own_callbacks(penalty=whole_penalty, module="net"), precision=precision, max_steps=80)

    def keep() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path, every_n_train_steps=57, save_top_k=-1)

    killed = keep()
    own = own_callbacks(penalty=make_penalty(), module="net")
    fit(module(), killed, *own, precision=precision, enable_checkpointing=True, max_steps=70)
    saved = torch.load(killed.best_model_path, weights_only=True)
    assert list(saved["state_dict"]) == list(Foreign().state_dict())
    state = saved["callbacks"]["LambdaUpdateCallback{'module': 'net'}"]
    # 57 steps, 20 of them without the penalty, the last update after 30 more.
    assert state["steps_since_update"] == len(state["penalty"]["_extra_state"]["pending"]) == 7

    resumed, penalty = module(), make_penalty()
    own = own_callbacks(penalty=penalty, module="net")
    options: dict[str, Any] = {"ckpt_path": killed.best_model_path, "enable_checkpointing": True}
    fit(resumed, keep(), *own, precision=precision, max_steps=80, **options)
    assert torch.equal(penalty.weights, whole_penalty.weights)
    torch.testing.assert_close(penalty.get_extra_state(), whole_penalty.get_extra_state(), rtol=0, atol=0)
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
