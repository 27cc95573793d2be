from __future__ import annotations

import pytest

from fairrf_lightning.datamodules import LSACDataModule


def test_table_is_the_known_one(lsac: LSACDataModule) -> None:
    table = lsac.read()
    assert len(table) == 65_308
    assert table["admit"].sum() == 16_124
    assert table["admit"].mean() == pytest.approx(0.247, abs=5e-4)
    assert table.columns.tolist() == [*LSACDataModule.columns, "admit"]
    assert not table.isna().to_numpy().any()
    rates = table.groupby("sex", observed=True)["admit"].mean()
    assert rates["female"] == pytest.approx(0.251, abs=5e-4)
    assert rates["male"] == pytest.approx(0.244, abs=5e-4)


def test_flaws_are_those_of_the_datasheet(lsac: LSACDataModule) -> None:
    table = lsac.read()
    leak = table[table["Year"] == "200x"]
    assert len(leak) == leak["admit"].sum() == 346
    assert table["GPA"].eq(0).sum() == 94
    assert table["LSAT"].gt(180).sum() == 2
    assert table.groupby("Race", observed=True)["URM"].nunique().eq(1).all()


def test_flawed_rows_are_dropped_on_request(lsac: LSACDataModule, caplog: pytest.LogCaptureFixture) -> None:
    data = LSACDataModule(drop_flawed=True, seed=lsac.seed)
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        table = data.read()
    assert len(table) == 65_308 - 346 - 94
    assert "dropped 440 of 65,308 rows" in caplog.text
    assert not table["Year"].eq("200x").any()
    assert not table["GPA"].eq(0).any()
    assert "Year=200x" not in data.feature_names


def test_checkpoint_keeps_its_rows_whatever_the_option(lsac: LSACDataModule) -> None:
    trained = LSACDataModule(drop_flawed=True, seed=3)
    state = trained.state_dict()
    tested = LSACDataModule(seed=0)
    tested.load_state_dict(state)
    assert tested.drop_flawed
    assert tested.state_dict() == state
    assert tested.split_sizes == trained.split_sizes != lsac.split_sizes
