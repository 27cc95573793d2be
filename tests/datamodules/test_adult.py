from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning.datamodules import AdultDataModule


def rows(data: AdultDataModule, part: str) -> set[int]:
    return set(data._parts[part]["row"].tolist())


def test_table_is_the_known_one(adult_table: pd.DataFrame) -> None:
    assert len(adult_table) == 45_222
    assert adult_table["income"].sum() == 11_208
    assert adult_table.columns.tolist() == [*AdultDataModule.columns, "income"]
    rates = adult_table.groupby("sex", observed=True)["income"].mean()
    assert rates["Female"] == pytest.approx(0.1136, abs=5e-5)
    assert rates["Male"] == pytest.approx(0.3125, abs=5e-5)
    assert not adult_table.isna().to_numpy().any()


def test_split_takes_each_row_once(adult: AdultDataModule) -> None:
    assert adult.split_sizes == {"train": 22_611, "val": 9_044, "test": 13_567}
    parts = [rows(adult, part) for part in ("train", "val", "test")]
    assert set.union(*parts) == set(range(45_222))
    assert str(adult) == ("AdultDataModule(train 22,611, val 9,044, test 13,567 rows; 101 features)")


def test_train_batches_have_the_shapes_and_types_of_floats(adult: AdultDataModule) -> None:
    loader = adult.train_dataloader()
    assert len(loader) == 22_611 // 512
    for batch in loader:
        assert batch["inputs"].shape == (512, adult.n_features)
        assert batch["inputs"].dtype == batch["target"].dtype == torch.float32
        assert batch["target"].shape == (512,)


def test_evaluation_batches_carry_the_groups(adult: AdultDataModule, adult_table: pd.DataFrame) -> None:
    assert adult.group_names == ["Female", "Male"]
    assert adult.num_groups == 2
    for loader, part in ((adult.val_dataloader(), "val"), (adult.test_dataloader(), "test")):
        batches = list(loader)
        assert batches[0].keys() == {"inputs", "target", "groups"}
        expected = adult_table.iloc[adult._parts[part]["row"].numpy()]
        groups = torch.cat([batch["groups"] for batch in batches])
        assert groups.dtype == torch.int64
        assert [adult.group_names[i] for i in groups] == expected["sex"].tolist()
        target = torch.cat([batch["target"] for batch in batches])
        assert target.tolist() == expected["income"].tolist()


def test_predict_batches_name_their_rows(adult: AdultDataModule, adult_table: pd.DataFrame) -> None:
    batches = list(adult.predict_dataloader())
    assert batches[0].keys() == {"inputs", "row"}
    row = torch.cat([batch["row"] for batch in batches])
    assert set(row.tolist()) == rows(adult, "test")
    inputs = torch.cat([batch["inputs"] for batch in batches])
    assert torch.equal(inputs, adult.encoder.transform(adult_table.iloc[row.numpy()]))


def test_encoding_is_learned_from_the_training_rows(
    adult: AdultDataModule, adult_table: pd.DataFrame
) -> None:
    train = adult_table.iloc[adult._parts["train"]["row"].numpy()]
    mean, std = adult.encoder.scales["age"]
    assert mean == pytest.approx(train["age"].mean(), rel=1e-12)
    assert std == pytest.approx(np.std(train["age"].to_numpy()), rel=1e-12)
    assert mean != pytest.approx(adult_table["age"].mean(), rel=1e-6)
    numeric = adult._parts["train"]["inputs"][:, : len(adult.encoder.scales)]
    torch.testing.assert_close(numeric.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(numeric.std(0, correction=0), torch.ones(5), atol=1e-4, rtol=0)


def test_related_columns_are_exact(adult: AdultDataModule) -> None:
    names = {
        feature: [adult.feature_names[i] for i in columns]
        for feature, columns in adult.related_columns.items()
    }
    assert list(names) == ["age", "relationship", "marital-status"]
    assert names["age"] == ["age"]
    assert len(names["marital-status"]) == 7
    values = ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife")
    assert names["relationship"] == [f"relationship={value}" for value in values]


def test_seed_decides_the_split(adult: AdultDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    again, followed, named = AdultDataModule(seed=0), AdultDataModule(), AdultDataModule(seed=7)
    first = [next(iter(data.train_dataloader()))["inputs"] for data in (adult, again)]
    assert torch.equal(*first)
    assert followed.state_dict() == named.state_dict()  # it sets the data up
    assert rows(again, "train") == rows(adult, "train")
    assert rows(followed, "train") == rows(named, "train") != rows(adult, "train")
    # the width of a model must not depend on the seed
    assert named.feature_names == adult.feature_names


def test_s_is_an_input_only_on_request() -> None:
    data = AdultDataModule(include_sensitive=True, related=["sex", "age"])
    assert data.related_columns["sex"] == [
        data.feature_names.index("sex=Female"),
        data.feature_names.index("sex=Male"),
    ]
