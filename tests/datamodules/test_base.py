from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.datamodules import SyntheticDataModule, TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.module import FairRFModule
from tests.trainers import quiet_trainer


class PeopleDataModule(TabularDataModule):
    """100 generated people; some do not tell their sex."""

    target = "hired"
    sensitive = "sex"
    default_related = ("age",)
    num_rows = 100

    def read(self) -> pd.DataFrame:
        draw = np.random.default_rng(0)
        return pd.DataFrame(
            {
                "age": draw.integers(18, 70, self.num_rows),
                "sex": draw.choice(np.array(["m", "f", None], dtype=object), self.num_rows),
                "town": draw.choice(["x", "y"], self.num_rows),
                "hired": draw.integers(0, 2, self.num_rows),
            }
        )


class Noting(LightningModule):
    """Note the inputs of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
        self.seen: dict[str, set[tuple[float, ...]]] = {"train": set(), "val": set(), "test": set()}

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self._note("train", batch)
        loss: Tensor = self.net(batch["inputs"]).square().mean()
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._note("val", batch)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._note("test", batch)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return batch["row"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def _note(self, stage: str, batch: dict[str, Tensor]) -> None:
        self.seen[stage].update(tuple(row) for row in batch["inputs"].tolist())


def trainer(folder: Path, **options: Any) -> Trainer:
    return quiet_trainer(default_root_dir=folder, num_sanity_val_steps=0, **options)


def train_rows(data: TabularDataModule) -> list[int]:
    rows: list[int] = data._parts["train"]["row"].tolist()
    return rows


def test_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        TabularDataModule()  # type: ignore[abstract]


def test_unknown_s_has_no_group() -> None:
    data = PeopleDataModule()
    assert data.group_names == ["f", "m"]
    groups = torch.cat([part["groups"] for part in data._parts.values()])
    assert set(groups.tolist()) == {-1, 0, 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PeopleDataModule]:
    folder = tmp_path_factory.mktemp("trained")
    data = PeopleDataModule(seed=1, split=(0.6, 0.2, 0.2), batch_size=7)
    fit = trainer(folder, max_epochs=1)
    fit.fit(Noting(), datamodule=data)
    fit.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt", data


def test_checkpoint_holds_plain_values(checkpoint: tuple[Path, PeopleDataModule]) -> None:
    path, data = checkpoint
    state = torch.load(path, weights_only=True)["PeopleDataModule"]
    assert state == data.state_dict()
    parts = data._parts
    data.load_state_dict(state)
    assert data._parts is parts  # nothing to restore, nothing read again
    assert state["seed"] == 1
    assert state["sensitive"] == "sex"
    assert state["feature_names"] == ["age", "town=x", "town=y"]


@pytest.mark.parametrize("stage", ["test", "validate"])
def test_checkpoint_is_evaluated_on_its_own_split(
    checkpoint: tuple[Path, PeopleDataModule], tmp_path: Path, stage: str
) -> None:
    path, trained = checkpoint
    data, model = PeopleDataModule(seed=2), Noting()
    data.setup()
    assert train_rows(data) != train_rows(trained)
    getattr(trainer(tmp_path), stage)(model, datamodule=data, ckpt_path=path, verbose=False)
    part = trained._parts["val" if stage == "validate" else "test"]
    expected = {tuple(row) for row in part["inputs"].tolist()}
    assert model.seen["val" if stage == "validate" else "test"] == expected
    assert data.state_dict() == trained.state_dict()


def test_resumed_training_keeps_the_split(checkpoint: tuple[Path, PeopleDataModule], tmp_path: Path) -> None:
    path, trained = checkpoint
    data, model = PeopleDataModule(seed=2, batch_size=7), Noting()
    trainer(tmp_path, max_epochs=2).fit(model, datamodule=data, ckpt_path=path)
    assert train_rows(data) == train_rows(trained)
    allowed = {tuple(row) for row in trained._parts["train"]["inputs"].tolist()}
    assert model.seen["train"] <= allowed


def test_prediction_names_the_rows(tmp_path: Path) -> None:
    data = PeopleDataModule(seed=2)
    rows = trainer(tmp_path).predict(Noting(), datamodule=data)
    assert rows is not None
    assert torch.equal(torch.cat(rows), data._parts["test"]["row"])  # type: ignore[arg-type]


def test_overfitting_repeats_the_same_batch(tmp_path: Path) -> None:
    data, model = PeopleDataModule(batch_size=8), Noting()
    trainer(tmp_path, max_epochs=4, overfit_batches=1).fit(model, datamodule=data)
    assert len(model.seen["train"]) <= 8


def test_text_does_not_read_the_data() -> None:
    data = PeopleDataModule()
    assert str(data) == "PeopleDataModule(not set up)"
    assert data._parts == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"related": []}, "related is empty"),
        ({"related": ["ages"]}, "no column 'ages'; did you mean 'age'"),
        ({"related": ["hired"]}, "no column 'hired'"),
        ({"related": ["age", "age"]}, "twice"),
        ({"related": ["sex"]}, "include_sensitive"),
        ({"batch_size": 0}, "batch_size = 0: expected 1 or more"),
        ({"eval_batch_size": -1}, "eval_batch_size = -1: expected 1 or more"),
        ({"seed": -1}, "seed = -1: expected 0 or more"),
        ({"split": (0.5, 0.5, 0.5)}, "add up to 1"),
        ({"split": (1.2, -0.4, 0.2)}, "positive"),
        ({"split": (0.5, 0.5)}, "three"),
        ({"split": (float("nan"), 0.5, 0.5)}, "positive"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PeopleDataModule(**options).setup()


def test_too_few_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeopleDataModule, "num_rows", 2)
    with pytest.raises(InputError, match="2 rows are too few"):
        PeopleDataModule().setup()


@pytest.fixture
def state() -> dict[str, Any]:
    data = SyntheticDataModule(n_rows=200, seed=0)
    data.setup("fit")
    return copy.deepcopy(data.state_dict())


def _lacks_a_column(encoder: dict[str, Any]) -> None:
    del encoder["scales"]["income"]


def _has_an_indicator(encoder: dict[str, Any]) -> None:
    encoder["indicators"] = ["income"]


@pytest.mark.parametrize("damage", [_lacks_a_column, _has_an_indicator])
def test_encoder_that_makes_other_inputs_is_refused(
    state: dict[str, Any], damage: Callable[[dict[str, Any]], None]
) -> None:
    damage(state["encoder"])
    with pytest.raises(InputError, match=r"its encoder makes \d input columns that are not the 6"):
        SyntheticDataModule(n_rows=200, seed=0).load_state_dict(state)


@pytest.mark.parametrize("damage", [{"columns": None}, {"related": [1]}, {"seed": "0"}, {"split": {}}])
def test_a_value_of_another_type_is_refused(state: dict[str, Any], damage: dict[str, Any]) -> None:
    data = SyntheticDataModule(n_rows=200, seed=0)
    with pytest.raises(InputError, match=f"data is damaged: {next(iter(damage))} = "):
        data.load_state_dict(state | damage)
    assert not data.is_restored


def test_a_table_is_read_once_when_a_checkpoint_is_tested(
    checkpoint: tuple[Path, PeopleDataModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[pd.DataFrame] = []
    read = PeopleDataModule.read

    def counted(self: PeopleDataModule) -> pd.DataFrame:
        tables.append(read(self))
        return tables[-1]

    monkeypatch.setattr(PeopleDataModule, "read", counted)
    trainer(tmp_path).test(Noting(), datamodule=PeopleDataModule(), ckpt_path=checkpoint[0], verbose=False)
    assert len(tables) == 1


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_groups_are_known_after_setup_of_any_stage(stage: str) -> None:
    data = PeopleDataModule()
    data.setup(stage)
    assert data.num_groups == len(data.group_names) == 2


def test_groups_are_counted_once_the_checkpoint_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = SyntheticDataModule(n_rows=200, seed=0)
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(FairRFModule(), datamodule=data)
    fit.save_checkpoint(tmp_path / "a.ckpt")
    read = mock.create_autospec(SyntheticDataModule.read, side_effect=SyntheticDataModule.read)
    monkeypatch.setattr(SyntheticDataModule, "read", read)
    module = FairRFModule(data.n_features, data.related_columns, num_groups=5)
    again = SyntheticDataModule(n_rows=200, seed=1)
    trainer(tmp_path).test(module, datamodule=again, ckpt_path=tmp_path / "a.ckpt", verbose=False)
    assert read.call_count == 1
    assert module.hparams["num_groups"] == 2
