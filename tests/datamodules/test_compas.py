from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
import torch

from fairrf_lightning.datamodules import COMPASDataModule
from fairrf_lightning.datamodules.columns import Groups
from fairrf_lightning.errors import InputError

RACES = {
    "African-American": 3_175,
    "Caucasian": 2_103,
    "Hispanic": 509,
    "Other": 343,
    "Asian": 31,
    "Native American": 11,
}


@pytest.fixture(scope="module")
def table(compas: COMPASDataModule) -> pd.DataFrame:
    return compas.read()


def test_table_is_the_known_one(table: pd.DataFrame) -> None:
    assert len(table) == 6_172
    assert table["is_recid"].sum() == 2_990
    assert table["is_recid"].mean() == pytest.approx(0.484, abs=5e-4)
    assert table.columns.tolist() == [*COMPASDataModule.columns, "is_recid"]
    assert table["race"].value_counts().to_dict() == RACES
    assert not table.isna().to_numpy().any()


def test_types_are_as_they_mean(table: pd.DataFrame) -> None:
    numbers = table.select_dtypes("number").columns.tolist()
    assert numbers == [
        "age",
        "priors_count",
        "days_b_screening_arrest",
        "decile_score",
        "duration",
        "is_recid",
    ]
    assert table["duration"].iloc[0] == pytest.approx(0.984468, abs=1e-6)  # days, as a fraction
    assert table["duration"].lt(0).sum() == 183


def test_number_of_dropped_rows_is_printed(
    compas: COMPASDataModule, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        compas.read()
    assert "dropped 1,042 of 7,214 rows" in caplog.text


def test_gaps_compare_two_groups_and_all_rows_count(compas: COMPASDataModule, table: pd.DataFrame) -> None:
    assert compas.group_names == ["African-American", "Caucasian"]
    assert compas.num_groups == 2
    for loader, part in ((compas.val_dataloader(), "val"), (compas.test_dataloader(), "test")):
        races = table["race"].iloc[compas._parts[part]["row"].numpy()].tolist()
        groups = torch.cat([batch["groups"] for batch in loader])
        expected = {"African-American": 0, "Caucasian": 1}
        assert groups.tolist() == [expected.get(race, -1) for race in races]
        assert Counter(groups.tolist())[-1] > 0
    trained = table["race"].iloc[compas._parts["train"]["row"].numpy()]
    assert trained.nunique() > 2


@pytest.mark.parametrize(
    ("groups", "names"),
    [("all", sorted(RACES)), (["Hispanic", "Asian", "Caucasian"], ["Asian", "Caucasian", "Hispanic"])],
)
def test_groups_are_selectable(groups: Groups, names: list[str]) -> None:
    data = COMPASDataModule(groups=groups)
    assert data.group_names == names
    ids = torch.cat([part["groups"] for part in data._parts.values()])
    known = {names.index(name): RACES[name] for name in names}
    others = {-1: 6_172 - sum(known.values())} if groups != "all" else {}
    assert Counter(ids.tolist()) == known | others


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["Caucasian", "African"], r"no 'African' in 'race'; did you mean .*'African-American'"),
        (["Caucasian"], "two or more"),
        (["Caucasian", "Caucasian"], "two or more"),
        ("Caucasian", "'all', or two or more"),
    ],
)
def test_wrong_groups_are_refused(groups: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        COMPASDataModule(groups=groups).setup()
