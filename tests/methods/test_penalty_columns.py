"""ConstrainS and RemoveR: related columns that are no inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from fairrf_lightning import FairRFModule, InputError
from fairrf_lightning.backbones import Linear
from fairrf_lightning.datamodules import SyntheticDataModule

MakeData = Callable[..., SyntheticDataModule]
Fit = Callable[..., Trainer]


def rows_of(data: SyntheticDataModule) -> dict[str, Tensor]:
    """Return the training rows in one batch, and S of each."""
    data.setup()
    return data._parts["train"]


def covariance_with_s(data: SyntheticDataModule, module: LightningModule) -> float:
    rows = rows_of(data)
    with torch.no_grad():
        probs = module(rows["inputs"]).sigmoid()
    return float(torch.cov(torch.stack([probs, rows["groups"].float()]), correction=0)[0, 1])


def test_s_is_hidden_by_default(make_data: MakeData) -> None:
    data = make_data()
    assert set(next(iter(data.train_dataloader()))) == {"inputs", "target"}
    assert data.penalty_columns is None


def test_exposed_s_is_a_column_of_the_penalty_and_no_input(make_data: MakeData) -> None:
    data, hidden = make_data(expose_sensitive=True), make_data()
    batch = next(iter(data.train_dataloader()))
    assert set(batch) == {"inputs", "target", "related"}
    assert torch.equal(batch["inputs"], next(iter(hidden.train_dataloader()))["inputs"])
    assert data.feature_names == hidden.feature_names
    assert data.related_columns == {"group": [0, 1]}
    rows = rows_of(data)
    assert torch.equal(rows["related"], torch.stack([1 - rows["groups"], rows["groups"]], dim=1).float())
    assert {"related", "groups"} <= set(next(iter(data.val_dataloader())))
    assert set(next(iter(data.predict_dataloader()))) == {"inputs", "row"}


def test_constrain_s_drives_the_covariance_with_s_to_zero(make_data: MakeData, fit: Fit) -> None:
    data = make_data(expose_sensitive=True, batch_size=2000)
    vanilla, fair = (FairRFModule(backbone=Linear, lr=0.02, eta=eta) for eta in (0.0, 5.0))
    fit(vanilla, data, 80)
    trainer = fit(fair, data, 80)
    assert covariance_with_s(data, vanilla) > 0.05
    assert abs(covariance_with_s(data, fair)) < 0.1 * covariance_with_s(data, vanilla)
    assert "lambda/group" in trainer.callback_metrics


def test_the_penalty_of_constrain_s_is_the_covariance_for_each_group(make_data: MakeData) -> None:
    data = make_data(expose_sensitive=True)
    module = FairRFModule(backbone=Linear, eta=1.0)
    module.adapt_to(data)
    rows = rows_of(data)
    with torch.no_grad():
        loss = module.training_step({key: rows[key] for key in ("inputs", "target", "related")})
        penalty = loss - module.task_loss(module(rows["inputs"]), rows["target"])
    assert float(penalty) == pytest.approx(2 * abs(covariance_with_s(data, module)), abs=1e-6)


def test_remove_r_keeps_every_related_column_from_the_model(make_data: MakeData) -> None:
    data, whole = make_data(remove_related=True), make_data()
    assert data.feature_names == ["skill", "practice", "lottery"]
    kept = [whole.feature_names.index(name) for name in data.feature_names]
    assert torch.equal(rows_of(data)["inputs"], rows_of(whole)["inputs"][:, kept])
    assert data.related_columns == {"height": [0], "income": [1], "hours": [2]}
    module = FairRFModule(eta=0.0, backbone=Linear)
    module.adapt_to(data)
    assert module.get_parameter("backbone.0.weight").shape == (1, 3)


def test_remove_r_still_measures_the_related_features(make_data: MakeData, fit: Fit) -> None:
    trainer = fit(FairRFModule(eta=0.0, backbone=Linear, lr=0.05), make_data(remove_related=True), 3)
    measured = trainer.callback_metrics
    assert float(measured["penalty/height"]) > 0
    assert float(measured["val_penalty"]) == 0


@pytest.mark.parametrize("option", [{"expose_sensitive": True}, {"remove_related": True}])
def test_a_checkpoint_restores_the_columns(option: dict[str, Any], make_data: MakeData) -> None:
    trained, fresh = make_data(**option), make_data(seed=7)
    fresh.setup()
    fresh.load_state_dict(trained.state_dict())
    assert fresh.related_columns == trained.related_columns
    assert torch.equal(fresh._parts["test"]["related"], trained._parts["test"]["related"])


def test_methods_do_not_mix(make_data: MakeData) -> None:
    with pytest.raises(InputError, match="expose_sensitive and remove_related"):
        make_data(expose_sensitive=True, remove_related=True)


def test_a_batch_without_the_columns_is_refused() -> None:
    module = FairRFModule(4, {"group": [0]}, penalty_columns=1)
    with pytest.raises(InputError, match="key 'related'"):
        module.training_step((torch.zeros(3, 4), torch.zeros(3)))


def test_columns_of_the_penalty_are_counted() -> None:
    with pytest.raises(InputError, match="columns 0 to 1"):
        FairRFModule(4, {"group": [2]}, penalty_columns=2)
