"""A new fit starts fresh; a fit that resumes, or a second one of the same Trainer, continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from fairrf_lightning import FairRFModule, InputError, RelatedFeaturePenalty
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.callbacks.test_pretrain import BATCHES, Toy, rows, trainer
from tests.dropin.twins import Foreign, fit, make_penalty, own_callbacks

EPOCH = 20  # batches of tests.dropin.twins


def learned(penalty: RelatedFeaturePenalty) -> tuple[list[float], int, int, int]:
    pending = len(penalty.get_extra_state()["pending"])
    return penalty.weights.tolist(), penalty.penalised_steps, penalty.updates, pending


class Phases(Callback):
    """Notes whether the penalty is on in each batch, and the lambda that it starts with."""

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self.penalty = None  # the callbacks look for an attribute of this name
        self._watched = penalty
        self.on: list[bool] = []
        self.first: list[float] = []

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.on.append(self._watched.enabled)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.first = self._watched.weights.tolist()


def test_a_second_trainer_pretrains_again() -> None:
    toy, callback = Toy([3.0, 3.0, 1.0, 1.0]), PretrainCallback(patience=1)
    trainer(callback, max_epochs=4).fit(toy, rows(), rows())
    first, toy.phases = toy.phases, []
    trainer(callback, max_epochs=4).fit(toy, rows(), rows())
    assert first == toy.phases == [False] * (2 * BATCHES) + [True] * (2 * BATCHES)


def test_pretraining_without_updates_of_lambda_starts_fresh() -> None:
    toy = Toy()
    for _ in range(2):
        trainer(PretrainCallback(epochs=1), max_epochs=2).fit(toy, rows())
        assert toy.fairness.penalised_steps == BATCHES


@pytest.mark.parametrize("limit", [{"epochs": 2}, {"steps": 5}])
def test_the_penalty_is_on_after_a_fit_that_ended_within_pretraining(limit: dict[str, Any]) -> None:
    toy = Toy()
    with pytest.warns(UserWarning, match="this is a vanilla model: the penalty was never on"):
        trainer(PretrainCallback(**limit), max_epochs=1).fit(toy, rows())
    assert not any(toy.phases)
    toy.phases = []
    trainer(LambdaUpdateCallback(every_n_steps=2), max_epochs=1).fit(toy, rows())
    assert all(toy.phases)
    assert toy.fairness.penalised_steps == BATCHES
    assert toy.fairness.updates == 1


class PowerCut(Callback):
    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("power cut")


def test_the_penalty_is_on_after_an_error_within_pretraining() -> None:
    toy = Toy()
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(PretrainCallback(), PowerCut(), max_epochs=1).fit(toy, rows())
    assert toy.phases == [False]
    assert toy.fairness.enabled


def attached(foreign: Foreign, penalty: RelatedFeaturePenalty) -> Phases:
    phases = Phases(penalty)
    fit(foreign, phases, *own_callbacks(penalty=penalty, module="net"))
    return phases


def test_a_second_fit_with_an_attached_penalty_equals_the_first() -> None:
    penalty = make_penalty()
    runs = [(attached(Foreign(), penalty), learned(penalty)) for _ in range(2)]
    for phases, _ in runs:
        assert phases.on == [False] * EPOCH + [True] * 40
        assert phases.first == pytest.approx([1 / 3] * 3)
    assert runs[0][1] == runs[1][1]
    assert runs[0][1][1:] == (40, 4, 0)


def test_a_second_fit_with_the_same_callbacks_equals_the_first() -> None:
    penalty, results = make_penalty(), []
    own = own_callbacks(penalty=penalty, module="net")
    for _ in range(2):
        fit(Foreign(), *own, max_steps=65)
        results.append(learned(penalty))
    assert results[0] == results[1]
    assert results[0][1:] == (45, 4, 5)


@pytest.mark.parametrize("second", [[], [LambdaUpdateCallback(every_n_steps=None)], [PretrainCallback()]])
def test_lambda_of_the_first_fit_is_not_the_start_of_the_second(second: list[Callback]) -> None:
    """FairRFModule starts fresh without callbacks as well."""
    module = FairRFModule(
        2, {"age": [0], "zip": [1]}, backbone=Linear, initial_weights={"age": 0.9, "zip": 0.1}
    )
    trainer(LambdaUpdateCallback(every_n_steps=1), max_epochs=1).fit(module, rows(), rows())
    assert module.penalty.weights.tolist() != pytest.approx([0.9, 0.1], abs=0.01)
    trainer(*second, max_epochs=2).fit(module, rows(), rows())
    assert module.penalty.weights.tolist() == pytest.approx([0.9, 0.1])
    assert module.penalty.updates == 0
    expected = BATCHES if second and isinstance(second[0], PretrainCallback) else 2 * BATCHES
    assert module.penalty.penalised_steps == expected


def test_a_resumed_fit_keeps_lambda_and_counters(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="kept")
    callbacks = PretrainCallback(epochs=1), LambdaUpdateCallback(every_n_steps=2)
    first, resumed = Toy(), Toy()
    trainer(*callbacks, keep, max_epochs=2).fit(first, rows())
    new = PretrainCallback(epochs=1), LambdaUpdateCallback(every_n_steps=2), ModelCheckpoint(tmp_path / "new")
    watch = Phases(resumed.fairness)
    trainer(*new, watch, max_epochs=3).fit(resumed, rows(), ckpt_path=tmp_path / "kept.ckpt")
    assert watch.first == first.fairness.weights.tolist() != [0.5, 0.5]
    assert all(watch.on)
    assert (resumed.fairness.penalised_steps, resumed.fairness.updates) == (2 * BATCHES, 3)


def test_a_second_fit_of_one_trainer_continues() -> None:
    toy, whole = Toy(), Toy()
    runner = trainer(PretrainCallback(steps=4), LambdaUpdateCallback(every_n_steps=2), max_epochs=2)
    runner.fit(toy, rows())
    halfway = learned(toy.fairness)
    runner.fit_loop.max_epochs = 3
    runner.fit(toy, rows())
    assert toy.phases == [False] * 4 + [True] * 5
    other = trainer(PretrainCallback(steps=4), LambdaUpdateCallback(every_n_steps=2), max_epochs=3)
    other.fit(whole, rows())
    assert learned(toy.fairness) == learned(whole.fairness) != halfway


class TwoOptimisers(Toy):
    """Steps twice in a batch, so that ``trainer.global_step`` rises by two."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = super().training_step(batch)
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([parameter], lr=0.1) for parameter in self.net.parameters()]


@pytest.mark.parametrize("toy", [Toy, TwoOptimisers])
def test_steps_mean_the_same_in_both_callbacks_with_several_optimisers(toy: type[Toy]) -> None:
    module, updates = toy(), LambdaUpdateCallback(every_n_steps=4)
    runner = trainer(PretrainCallback(steps=4), updates, max_epochs=3)
    runner.fit(module, rows())
    assert runner.global_step == 9 * len(runner.optimizers)
    assert module.phases == [False] * 4 + [True] * 5
    assert module.fairness.updates == 1
    assert updates.state_dict() == {"steps_since_update": 1}


def test_pretraining_steps_of_several_optimisers_survive_a_resume(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="kept")
    trainer(PretrainCallback(steps=4), keep, max_epochs=1).fit(TwoOptimisers(), rows())
    resumed = TwoOptimisers()
    again = PretrainCallback(steps=4), ModelCheckpoint(tmp_path / "new")
    trainer(*again, max_epochs=3).fit(resumed, rows(), ckpt_path=tmp_path / "kept.ckpt")
    assert resumed.phases == [False] + [True] * 5


def test_a_fit_that_never_updates_lambda_warns() -> None:
    with pytest.warns(
        UserWarning, match="never updated: the penalty was on for 3 optimiser steps, and every_n"
    ):
        trainer(LambdaUpdateCallback(every_n_steps=4), max_epochs=1).fit(Toy(), rows())


def test_a_reused_callback_trains_another_module_as_a_new_one_would() -> None:
    penalty = make_penalty()
    used, first = own_callbacks(penalty=penalty, module="net"), Foreign()
    fit(first, *used)
    kept = {name: value.clone() for name, value in first.state_dict().items()}
    second = Foreign(outputs=1)
    fit(second, *used, max_steps=50)
    fresh, alone = make_penalty(), Foreign(outputs=1)
    fit(alone, *own_callbacks(penalty=fresh, module="net"), max_steps=50)
    assert learned(penalty) == learned(fresh)
    for name, value in alone.state_dict().items():
        assert second.state_dict()[name].equal(value), name
        assert first.state_dict()[name].equal(kept[name]), name


def test_a_vanilla_fit_does_not_warn_of_lambda_or_pretraining(recwarn: pytest.WarningsRecorder) -> None:
    callbacks = PretrainCallback(epochs=1), LambdaUpdateCallback(every_n_steps=4)
    trainer(*callbacks, max_epochs=1).fit(Toy(eta=0.0), rows())
    assert not [str(w.message) for w in recwarn if "never" in str(w.message)]


@pytest.mark.filterwarnings("ignore:Found .* module.* in eval mode")
def test_lambda_is_updated_in_a_module_that_was_left_in_eval_mode() -> None:
    toy = Toy()
    toy.eval()
    trainer(LambdaUpdateCallback(every_n_steps=1), max_epochs=1).fit(toy, rows())
    assert toy.fairness.updates == BATCHES


def test_rows_of_an_interrupted_epoch_do_not_count_in_the_next_fit() -> None:
    """Losses and validation rows of an epoch that broke off are forgotten."""

    class BreakValidation(Callback):
        def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
            if not trainer.sanity_checking:
                raise RuntimeError("power cut")

    def metrics(*callbacks: Callback, module: FairRFModule) -> dict[str, float]:
        runner = trainer(*callbacks, max_epochs=1)
        runner.fit(module, rows(), rows())
        return {name: float(value) for name, value in runner.callback_metrics.items()}

    def made() -> FairRFModule:
        return FairRFModule(2, {"age": [0], "zip": [1]}, backbone=nn.Linear(2, 1))

    module, whole = made(), made()
    whole.load_state_dict(module.state_dict())
    initial = {name: value.clone() for name, value in module.backbone.state_dict().items()}
    for cut in (PowerCut(), BreakValidation()):
        with pytest.raises(RuntimeError, match="power cut"):
            metrics(cut, module=module)
    module.backbone.load_state_dict(initial)
    module.train()
    assert metrics(module=module) == metrics(module=whole)


def made(weights: dict[str, float] | None = None) -> RelatedFeaturePenalty:
    return RelatedFeaturePenalty({"age": [0], "job": [1]}, initial_weights=weights)


def test_the_default_eta_is_the_documented_one() -> None:
    assert made().eta == 0.3


def test_a_module_that_holds_its_penalty_ignores_the_state_of_an_attached_one() -> None:
    attached = LambdaUpdateCallback(penalty=made({"age": 0.9, "job": 0.1}), module="net").state_dict()
    callback = LambdaUpdateCallback()
    callback.load_state_dict(attached | {"steps_since_update": 7})
    assert callback.state_dict()["steps_since_update"] == 7


def test_an_attached_penalty_keeps_its_lambda_if_the_checkpoint_has_no_other() -> None:
    penalty = made({"age": 0.9, "job": 0.1})
    callback = LambdaUpdateCallback(penalty=penalty, module="net")
    callback.load_state_dict(LambdaUpdateCallback().state_dict())
    torch.testing.assert_close(penalty.weights, torch.tensor([0.9, 0.1]))


@pytest.mark.parametrize(
    ("callback", "damage"),
    [
        (LambdaUpdateCallback(), {"steps_since_update": ["a"]}),
        (PretrainCallback(patience=2), {"waited": "1"}),
        (PretrainCallback(patience=2), {"finished": 1}),
        (PretrainCallback(patience=2), {"best": None}),
    ],
)
def test_a_damaged_state_is_refused(callback: Callback, damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"callback is damaged: {next(iter(damage))}"):
        callback.load_state_dict(callback.state_dict() | damage)
