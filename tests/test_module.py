from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningDataModule, seed_everything
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import FairRFModule, InputError
from fairrf_lightning.backbones import MLP, Linear, LinearSVM
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.functional import feature_penalties
from fairrf_lightning.metrics import DemographicParityGap
from tests.dropin.test_validation_penalty import Logged
from tests.trainers import quiet_trainer

RELATED = {"age": [0], "job": [1, 2]}


def people(rows: int = 600) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 5, generator=generator)
    groups = (inputs[:, 0] + torch.randn(rows, generator=generator) > 0).long()
    target = (inputs[:, 0] + inputs[:, 3] + torch.randn(rows, generator=generator) > 0).float()
    return {"inputs": inputs, "target": target, "groups": groups}


class PeopleData(LightningDataModule):
    """What FairRFModule asks of a data module, and no more."""

    n_features = 5
    related_columns = RELATED
    num_groups = 2

    def train_dataloader(self) -> TensorBatches:
        rows = people()
        return TensorBatches({"inputs": rows["inputs"], "target": rows["target"]}, 100, shuffle=True)

    def val_dataloader(self) -> TensorBatches:
        return TensorBatches(people(), 250)

    test_dataloader = val_dataloader


def fitted(**options: Any) -> FairRFModule:
    seed_everything(0, verbose=False)
    module = FairRFModule(backbone=Linear, lr=0.05, **options)
    quiet_trainer(max_epochs=15, callbacks=[LambdaUpdateCallback()]).fit(module, PeopleData())
    return module


def penalty_after(module: FairRFModule) -> float:
    rows = people()
    with torch.no_grad():
        probs = module(rows["inputs"]).sigmoid()
        return float(feature_penalties(probs, rows["inputs"][:, :1], torch.tensor([0]), 1))


def test_the_penalty_lowers_the_dependence_on_the_related_feature() -> None:
    vanilla, fair = fitted(eta=0.0), fitted(eta=3.0)
    assert penalty_after(vanilla) > 0.1
    assert penalty_after(fair) < 0.3 * penalty_after(vanilla)


def test_training_step_is_task_loss_plus_penalty() -> None:
    module = FairRFModule(5, RELATED, backbone=Linear, eta=0.7)
    rows = people()
    loss = module.training_step((rows["inputs"], rows["target"]))
    logits = module(rows["inputs"])
    by_hand = nn.functional.binary_cross_entropy_with_logits(logits, rows["target"])
    penalties = feature_penalties(logits.sigmoid(), rows["inputs"][:, :3], torch.tensor([0, 1, 1]), 2)
    torch.testing.assert_close(loss, by_hand + 0.7 * penalties.mean())


def test_evaluation_measures_the_whole_set_not_the_mean_of_batches() -> None:
    module = FairRFModule(5, RELATED, backbone=Linear, eta=0.7)
    trainer = quiet_trainer()
    (logged,) = trainer.test(module, PeopleData(), verbose=False)
    rows = people()
    with torch.no_grad():
        probs = module(rows["inputs"]).sigmoid()
    penalties = feature_penalties(probs, rows["inputs"][:, :3], torch.tensor([0, 1, 1]), 2)
    assert logged["test_penalty/age"] == pytest.approx(float(penalties[0]), rel=1e-5)
    assert logged["test_penalty/job"] == pytest.approx(float(penalties[1]), rel=1e-5)
    assert logged["test_penalty"] == pytest.approx(0.7 * float(penalties.mean()), rel=1e-5)
    assert logged["test_objective"] == pytest.approx(logged["test_loss"] + logged["test_penalty"], rel=1e-6)
    assert logged["test_acc"] == pytest.approx(float(((probs >= 0.5) == rows["target"]).float().mean()))
    gap = DemographicParityGap()
    assert logged["test_dp_gap"] == pytest.approx(float(gap(probs, rows["target"].long(), rows["groups"])))
    assert logged["test_dp_gap_low"] <= logged["test_dp_gap"] <= logged["test_dp_gap_high"]


def test_tuples_without_groups_report_no_gaps() -> None:
    rows = people()
    loader = DataLoader(TensorDataset(rows["inputs"], rows["target"]), batch_size=200)
    module = FairRFModule(5, {"age": [0]}, backbone=Linear)
    (logged,) = quiet_trainer().test(module, loader, verbose=False)
    assert "test_acc" in logged
    assert not any("gap" in name for name in logged)
    (logged,) = quiet_trainer().validate(module, loader, verbose=False)
    assert "penalty/age" in logged


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_backbone_of_the_users_may_have_one_or_two_outputs(outputs: int) -> None:
    module = FairRFModule(5, RELATED, backbone=nn.Linear(5, outputs), lr=0.05)
    trainer = quiet_trainer(max_epochs=5)
    trainer.fit(module, PeopleData())
    assert trainer.callback_metrics["val_acc"] > 0.7
    predictions = trainer.predict(module, DataLoader(TensorDataset(people()["inputs"]), batch_size=600))
    assert predictions is not None
    (batch,) = predictions
    assert isinstance(batch, dict)
    assert batch["probability"].shape == (600,)


def test_a_backbone_is_held_once_and_no_private_name_is_in_the_summary() -> None:
    module = FairRFModule(5, RELATED, backbone=nn.Linear(5, 1))
    assert [name for name, _ in module.named_children()] == [
        "backbone",
        "penalty",
        "val_metrics",
        "test_metrics",
    ]
    assert [name for name in module.state_dict() if "weight" in name] == [
        "backbone.weight",
        "penalty.weights",
    ]


def test_predict_takes_bare_tensors_and_keeps_row_numbers() -> None:
    module = FairRFModule(5, RELATED)
    inputs = people(10)["inputs"]
    assert set(module.predict_step(inputs)) == {"probability", "decision"}
    assert torch.equal(
        module.predict_step({"inputs": inputs, "row": torch.arange(10)})["row"], torch.arange(10)
    )


def test_the_svm_brings_its_own_loss() -> None:
    module = FairRFModule(5, RELATED, backbone=LinearSVM, eta=0.0)
    rows = people()
    loss = module.training_step(rows)
    backbone = module.backbone
    assert isinstance(backbone, LinearSVM)
    torch.testing.assert_close(loss, backbone.task_loss(module(rows["inputs"]), rows["target"]))


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_lambda_is_float32_in_any_precision(precision: Any) -> None:
    module = FairRFModule(5, RELATED, backbone=Linear, eta=0.5)
    callback = LambdaUpdateCallback(beta=0.2, every_n_steps=2)
    quiet_trainer(max_epochs=2, precision=precision, callbacks=callback).fit(module, PeopleData())
    assert module.penalty.weights.dtype == torch.float32
    assert float(module.penalty.weights.sum()) == pytest.approx(1, abs=1e-6)
    assert not torch.allclose(module.penalty.weights, torch.tensor(0.5))


def test_weight_averaging_works_once_the_module_knows_the_data() -> None:
    module = FairRFModule(backbone=Linear)
    data = PeopleData()
    module.adapt_to(data)
    callbacks = [StochasticWeightAveraging(swa_lrs=0.01), LambdaUpdateCallback()]
    quiet_trainer(max_epochs=4, callbacks=callbacks).fit(module, data)


def test_hparams_hold_plain_values_only(tmp_path: Path) -> None:
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(FairRFModule(backbone=partial(MLP, hidden=(8,)), optimizer=torch.optim.SGD), PeopleData())
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    loaded = FairRFModule.load_from_checkpoint(
        tmp_path / "m.ckpt", backbone=partial(MLP, hidden=(8,)), weights_only=True
    )
    assert loaded.hparams["related"] == RELATED
    assert copy.deepcopy(loaded).penalty.feature_names == ["age", "job"]


def test_random_state_is_saved_and_read_without_a_trainer() -> None:
    module, checkpoint = FairRFModule(5, RELATED), dict[str, Any]()
    module.on_save_checkpoint(checkpoint)
    assert torch.equal(checkpoint["rng_state"]["cpu"], torch.get_rng_state()[None])
    checkpoint["rng_state"]["cpu"] = torch.get_rng_state()  # of one process
    module.on_load_checkpoint(checkpoint)
    module.on_train_start()
    checkpoint["rng_state"]["cpu"] = torch.get_rng_state()[:-1]
    with pytest.raises(RuntimeError):
        module.on_load_checkpoint(checkpoint)


class LateGroups(PeopleData):
    """Knows only after ``setup`` that there are three groups."""

    def test_dataloader(self) -> TensorBatches:
        self.num_groups = 3
        rows = people()
        return TensorBatches({**rows, "groups": torch.arange(600) % 3}, 250)


def test_groups_that_become_known_after_setup_are_compared() -> None:
    module = FairRFModule(backbone=Linear)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, PeopleData())
    probs = module(people()["inputs"]).sigmoid()
    rates = [(probs[group::3] >= 0.5).double().mean() for group in range(3)]
    [found] = trainer.test(module, LateGroups(), verbose=False)
    assert found["test_dp_gap"] == pytest.approx(float(max(rates) - min(rates)), abs=1e-6)


def test_a_scheduler_steps_once_an_epoch() -> None:
    scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1)
    module = FairRFModule(5, RELATED, optimizer=partial(torch.optim.SGD, lr=1.0), lr_scheduler=scheduler)
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(module, PeopleData())
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)


def test_the_default_optimiser_is_fused_adam() -> None:
    module = FairRFModule(5, RELATED)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, PeopleData())
    (optimizer,) = trainer.optimizers
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["fused"]
    assert optimizer.defaults["lr"] == 1e-3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"eta": -1.0}, "eta = -1.0"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"statistic": "cov"}, "statistic = 'cov'"),
        ({"given": "negatives"}, "given = 'negatives'"),
        ({"initial_weights": {"age": 0.5, "job": 0.6}}, "adding up to 1"),
        ({"n_features": 2, "related": RELATED}, "columns 0 to 1"),
        ({"n_features": 2, "related": {}}, "at least one related feature"),
    ],
)
def test_wrong_options_are_refused_at_construction(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        FairRFModule(**options)


def test_a_module_that_knows_no_columns_says_how_to_give_them() -> None:
    with pytest.raises(InputError, match="n_features"):
        quiet_trainer().test(FairRFModule(), PeopleData().val_dataloader())


@pytest.mark.parametrize("command", ["validate", "test"])
def test_an_evaluation_forgets_the_one_before(command: str) -> None:
    first = {name: values[:200] for name, values in people().items()}
    second = {name: values[200:] for name, values in people().items()}
    module = FairRFModule(5, RELATED, backbone=Linear)
    fresh = copy.deepcopy(module)
    getattr(quiet_trainer(), command)(module, TensorBatches(first, 100), verbose=False)
    again = getattr(quiet_trainer(), command)(module, TensorBatches(second, 100), verbose=False)
    assert again == getattr(quiet_trainer(), command)(fresh, TensorBatches(second, 100), verbose=False)


class Recorder(FairRFModule):
    """Keeps the loss and the penalty of each batch, computed apart."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[float, float]] = []

    def training_step(self, batch: Any) -> Tensor:
        with torch.no_grad():
            self.penalty.eval()  # it does not count these rows a second time
            logits = self(batch["inputs"])
            penalty = self.penalty(logits, batch["inputs"])
            self.penalty.train()
        self.seen.append((float(self.task_loss(logits, batch["target"])), float(penalty)))
        return super().training_step(batch)


def test_epoch_logs_the_mean_loss_and_penalty_of_its_own_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 3, generator=generator)
    target = (inputs.sum(1) > 0).float()
    module = Recorder(n_features=3, related={"age": [0], "job": [1]}, backbone=Linear, eta=2.0, lr=0.1)
    logged = Logged()
    trainer = quiet_trainer(max_epochs=3, callbacks=[logged])
    rows = {"inputs": inputs, "target": target}
    trainer.fit(module, TensorBatches(rows, 60, shuffle=True), TensorBatches(rows, 60))
    assert len(module.seen) == 3 * 5
    assert len(logged.values) == 3
    for epoch, values in enumerate(logged.values):
        losses, penalties = zip(*module.seen[5 * epoch : 5 * epoch + 5], strict=True)
        assert values["train_loss"] == pytest.approx(sum(losses) / 5, rel=1e-5)
        assert values["train_penalty"] == pytest.approx(sum(penalties) / 5, rel=1e-5)
        assert values["train_penalty"] > 0.01
        assert values["lambda/age"] == pytest.approx(0.5)
    assert module.penalty.penalised_steps == 15


@pytest.mark.filterwarnings("ignore:.*enable_checkpointing.*")
def test_lr_find_changes_the_learning_rate_and_nothing_else(tmp_path: Any) -> None:
    module, updates = FairRFModule(backbone=Linear, lr=1e-3), LambdaUpdateCallback(every_n_steps=4)
    trainer = quiet_trainer(
        max_epochs=10, callbacks=[PretrainCallback(epochs=1), updates], default_root_dir=tmp_path
    )
    found = Tuner(trainer).lr_find(module, datamodule=PeopleData(), num_training=30)
    assert found is not None
    suggested = found.suggestion()
    assert suggested is not None
    assert suggested != 1e-3
    assert module.penalty.penalised_steps == 0
    trainer.fit(module, PeopleData())
    assert trainer.optimizers[0].param_groups[0]["lr"] == module.hparams["lr"] == suggested
    assert module.penalty.penalised_steps == 54, "nine of ten epochs: the steps of lr_find do not count"
    assert module.penalty.updates == 13


def test_lr_find_is_refused_where_it_could_change_nothing(tmp_path: Any) -> None:
    module = FairRFModule(backbone=Linear, optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = quiet_trainer(max_epochs=1, default_root_dir=tmp_path)
    with pytest.raises(AttributeError, match="learning rate"):
        Tuner(trainer).lr_find(module, datamodule=PeopleData(), num_training=30)


@pytest.mark.filterwarnings("ignore:You passed .*16-mixed")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "32-true"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_are_clipped_in_any_precision(precision: Any, clip: float | None) -> None:
    """On a processor Lightning turns 16-mixed into bf16-mixed."""
    module = FairRFModule(backbone=Linear, eta=0.5)
    trainer = quiet_trainer(max_epochs=1, precision=precision, gradient_clip_val=clip)
    trainer.fit(module, PeopleData())
    (optimizer,) = trainer.optimizers
    assert optimizer.param_groups[0]["fused"] is not ("mixed" in precision and clip is not None)
    assert module.penalty.penalised_steps == 6
    assert all(bool(parameter.isfinite().all()) for parameter in module.parameters())
