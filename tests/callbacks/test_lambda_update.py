from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import feature_penalties, solve_lambda
from tests.trainers import quiet_trainer

RELATED = {"age": [0], "zip": [2, 1]}


class UserModule(LightningModule):
    """A user's own module with a penalty in one line; notes the rows that the penalty saw."""

    def __init__(self, related: dict[str, list[int]] = RELATED) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.fairness = RelatedFeaturePenalty(related, eta=0.5)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net(batch["inputs"]).squeeze(1)
        self.seen.append((logits.detach().sigmoid(), batch["inputs"]))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])
        fair: Tensor = self.fairness(logits, batch["inputs"])
        return loss + fair

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def optimum(self, batches: slice, beta: float) -> list[float]:
        """Return lambda for the rows of these batches together."""
        preds = torch.cat([preds for preds, _ in self.seen[batches]])
        related = torch.cat([inputs for _, inputs in self.seen[batches]])[:, [0, 2, 1]]
        return solve_lambda(feature_penalties(preds, related, torch.tensor([0, 1, 1]), 2), beta).tolist()


class Watch(Callback):
    """Notes lambda after each batch; breaks down at a given step."""

    def __init__(self, break_at: int = -1) -> None:
        self.break_at = break_at
        self.weights: list[list[float]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.break_at:
            raise RuntimeError("power cut")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        penalty = next(m for m in pl_module.modules() if isinstance(m, RelatedFeaturePenalty))
        self.weights.append(penalty.weights.tolist())


def fit(
    model: LightningModule, *callbacks: Callback, ckpt_path: Path | None = None, **options: Any
) -> list[list[float]]:
    """Train on 22 rows in shuffled batches of 4; return lambda after each batch."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(22, 4, generator=generator)
    target = (inputs @ torch.tensor([0.8, 1.5, -0.3, 0.5]) > 0).float()
    watch = next((c for c in callbacks if isinstance(c, Watch)), Watch())
    trainer = quiet_trainer(
        callbacks=[c for c in callbacks if c is not watch] + [watch],
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        log_every_n_steps=1,
        **options,
    )
    tensors = {"inputs": inputs, "target": target}
    train, evaluate = TensorBatches(tensors, 4, shuffle=True, seed=3), TensorBatches(tensors, 22)
    trainer.fit(model, train, evaluate if isinstance(model, FairRFModule) else None, ckpt_path=ckpt_path)
    return watch.weights


def test_lambda_is_the_optimum_of_the_rows_since_the_last_update() -> None:
    model = UserModule()
    callbacks = PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.5, every_n_steps=3)
    weights = fit(model, *callbacks, max_epochs=3)
    assert weights[:7] == [[0.5, 0.5]] * 7, "five steps of pretraining and two with the penalty on"
    for step in (8, 11, 14):
        expected = model.optimum(slice(step - 3, step), beta=0.5)
        assert weights[step - 1] == pytest.approx(expected, abs=1e-5)
        assert weights[step - 1] != weights[step - 2]
    assert weights[7] == weights[8] == weights[9]
    assert weights[10] == weights[11] == weights[12]
    assert weights[13] == weights[14] == model.fairness.weights.tolist()


def test_lambda_of_fairrf_module_is_updated() -> None:
    model = FairRFModule(4, RELATED)
    weights = fit(model, LambdaUpdateCallback(beta=0.5, every_n_steps=4), max_epochs=1)
    assert weights[:3] == [[0.5, 0.5]] * 3
    assert weights[3] == weights[4] == model.penalty.weights.tolist()
    assert weights[3] != [0.5, 0.5]


def test_steps_are_those_of_the_optimiser() -> None:
    model = UserModule()
    callback = LambdaUpdateCallback(beta=0.5, every_n_steps=2)
    weights = fit(model, callback, max_epochs=2, limit_train_batches=4, accumulate_grad_batches=2)
    assert weights[:3] == [[0.5, 0.5]] * 3
    assert weights[3] == pytest.approx(model.optimum(slice(4), 0.5), abs=1e-5)
    assert weights[4:7] == [weights[3]] * 3
    assert weights[7] == pytest.approx(model.optimum(slice(4, 8), 0.5), abs=1e-5)


@pytest.mark.parametrize("callbacks", [(), (LambdaUpdateCallback(beta=0.5, every_n_steps=None),)])
def test_lambda_is_fixed_without_updates(callbacks: tuple[Callback, ...]) -> None:
    assert fit(UserModule(), *callbacks, max_epochs=2) == [[0.5, 0.5]] * 10


def test_lambda_is_fixed_while_the_penalty_is_off() -> None:
    weights = fit(UserModule(), PretrainCallback(epochs=2), LambdaUpdateCallback(0.5, 1), max_epochs=2)
    assert weights == [[0.5, 0.5]] * 10


def test_all_penalties_of_a_module_are_updated() -> None:
    model = UserModule()
    model.add_module("second", RelatedFeaturePenalty(RELATED, eta=0.0))
    model.add_module("third", RelatedFeaturePenalty({"age": [0], "height": [3]}))
    third = model.get_submodule("third")

    def training_step(batch: dict[str, Tensor]) -> Tensor:
        fair: Tensor = third(model.net(batch["inputs"]), batch["inputs"])
        return UserModule.training_step(model, batch) + fair

    model.training_step = training_step  # type: ignore[method-assign]
    fit(model, LambdaUpdateCallback(beta=0.5, every_n_steps=5), max_epochs=1)
    halves = torch.full((2,), 0.5)
    assert not torch.equal(model.fairness.weights, halves)
    assert torch.equal(model.get_buffer("second.weights"), halves), "eta = 0: nothing to solve for"
    assert not torch.equal(model.get_buffer("third.weights"), halves)


def test_collapse_is_told_once() -> None:
    model = UserModule()
    with pytest.warns(UserWarning, match="lambda has collapsed") as caught:
        weights = fit(model, LambdaUpdateCallback(beta=1e-9, every_n_steps=1), max_epochs=2)
    told = [str(w.message) for w in caught if "collapsed" in str(w.message)]
    assert all(sorted(w) == [0, 1] for w in weights)
    assert len(told) == 1
    name = ["age", "zip"][weights[0].index(1)]
    assert f"onto '{name}'" in told[0]
    assert "now 1e-09" in told[0]


def test_the_rule_and_a_beta_for_each_model_are_passed_on() -> None:
    penalty = RelatedFeaturePenalty(RELATED, eta=torch.ones(2))
    inputs, preds = torch.randn(50, 3), torch.randn(2, 50)
    penalty(preds, inputs)
    found = penalty.penalties(penalty.moments(preds.sigmoid(), inputs))
    LambdaUpdateCallback([0.1, 2.0], rule="worst_case")._update(penalty)
    expected = solve_lambda(found, torch.tensor([0.1, 2.0]), rule="worst_case")
    torch.testing.assert_close(penalty.weights, expected)


def test_single_feature_cannot_collapse() -> None:
    """Its weight is always 1; a warning would fail this test."""
    weights = fit(UserModule({"age": [0]}), LambdaUpdateCallback(beta=1e-9, every_n_steps=1), max_epochs=1)
    assert weights == [[1.0]] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps = 0: expected 1 or more"),
        ({"every_n_steps": -5}, "every_n_steps = -5: expected 1 or more"),
        ({"beta": 0.0}, r"beta = 0\.0: expected a positive number"),
        ({"beta": -1.0}, r"beta = -1\.0: expected a positive number"),
        ({"beta": math.nan}, "beta = nan: expected a positive number"),
        ({"beta": math.inf}, "beta = inf: expected a positive number"),
        ({"beta": [0.5, 0.0]}, "expected"),
        ({"rule": "best"}, "expected"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LambdaUpdateCallback(**options)


# --- killed and resumed --------------------------------------------------------------------------------


def run(
    folder: Path, every: int, *, break_at: int = -1, dropout: float = 0.0, **options: Any
) -> tuple[list[list[float]], list[Tensor]]:
    """Train for four epochs of five batches; return lambda after each batch and all that was learned."""
    torch.manual_seed(0)
    model = FairRFModule(4, RELATED, eta=1.0, backbone=partial(MLP, dropout=dropout), lr=0.01)
    watch = Watch(break_at)
    callbacks = (
        PretrainCallback(epochs=1),
        LambdaUpdateCallback(beta=0.3, every_n_steps=3),
        ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1),
        watch,
    )
    if break_at > 0:
        with pytest.raises(RuntimeError, match="power cut"):
            fit(model, *callbacks, max_epochs=4, **options)
    else:
        fit(model, *callbacks, max_epochs=4, **options)
    return watch.weights, [model.penalty.weights, *model.parameters()]


@pytest.mark.parametrize(
    ("every", "kept", "break_at", "options"),
    [
        (3, 3, 4, {}),  # while pretraining
        (7, 7, 9, {"dropout": 0.5}),  # within an epoch, two steps after the penalty went on
        (5, 5, 7, {}),  # at the last batch of the pretraining
        (5, 10, 12, {}),  # at the last batch of an epoch, two steps after an update
        (4, 8, 8, {}),  # right after an update
        (4, 4, 5, {"accumulate_grad_batches": 2}),  # an epoch has three steps, of two, two and one batches
    ],
)
def test_resumed_run_ends_like_the_uninterrupted(
    tmp_path: Path, every: int, kept: int, break_at: int, options: dict[str, Any]
) -> None:
    accumulates = "accumulate_grad_batches" in options
    path, learned = run(tmp_path / "whole", every, **options)
    assert len({tuple(weights) for weights in path}) == (4 if accumulates else 6), "the start and each update"
    run(tmp_path / "first", every, break_at=break_at, **options)
    ckpt_path = tmp_path / "first" / f"step={kept}.ckpt"
    resumed_path, resumed = run(tmp_path / "second", every, ckpt_path=ckpt_path, **options)
    assert resumed_path == path[7 if accumulates else kept :]
    assert all(torch.equal(a, b) for a, b in zip(resumed, learned, strict=True))


def test_checkpoint_holds_tensors_and_plain_values_only(tmp_path: Path) -> None:
    run(tmp_path, every=7)
    checkpoint = torch.load(tmp_path / "step=7.ckpt", weights_only=True)
    assert checkpoint["callbacks"]["LambdaUpdateCallback"] == {"steps_since_update": 2}
    assert checkpoint["state_dict"]["penalty._extra_state"]["pending"].shape == (2, 3 + 3 * 3)
