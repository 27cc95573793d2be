from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairrf_lightning.datamodules import AdultDataModule, TabularDataModule
from fairrf_lightning.datamodules.leakage import association, check_leakage, is_recoding
from fairrf_lightning.errors import InputError

columns = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=40)


class PeopleDataModule(TabularDataModule):
    """400 people, some of unknown sex, with a column of choice."""

    target = "hired"
    sensitive = "sex"
    default_related = ("age",)
    table_seed = 0
    make_extra: Any = None

    def read(self) -> pd.DataFrame:
        draw = np.random.default_rng(0)
        table = pd.DataFrame({"age": draw.normal(40, 10, 400), "hired": draw.integers(0, 2, 400)})
        sexes = np.array(["f", "m", None], dtype=object)
        draw = np.random.default_rng(self.table_seed)
        table["sex"] = draw.choice(sexes, 400, p=[0.45, 0.45, 0.1])
        if self.make_extra is not None:
            table["extra"] = self.make_extra(table["sex"], draw)
        return table


def people(extra: Any = None, **options: Any) -> PeopleDataModule:
    data = PeopleDataModule(seed=0, **options)
    data.make_extra = extra
    return data


def test_no_data_module_trains_with_s(any_data: TabularDataModule) -> None:
    for batch in any_data.train_dataloader():
        assert batch.keys() == {"inputs", "target"}
        assert batch["inputs"].shape[1] == any_data.n_features
    assert any_data.sensitive not in any_data.encoder.owners
    assert any_data.sensitive not in any_data.related_columns
    assert not [name for name in any_data.feature_names if name.split("=")[0] == any_data.sensitive]
    assert next(iter(any_data.val_dataloader())).keys() == {"inputs", "target", "groups"}


def test_no_data_module_takes_s_as_related(any_data: TabularDataModule) -> None:
    with pytest.raises(InputError, match="include_sensitive"):
        type(any_data)(related=[str(any_data.sensitive)])
    with pytest.raises(InputError, match=f"did you mean '{any_data.related[0]}'"):
        type(any_data)(related=[f"{any_data.related[0]}s"])


def test_training_does_not_depend_on_s() -> None:
    one, other = people(), people()
    other.table_seed = 1
    assert not one.read()["sex"].equals(other.read()["sex"])
    for first, second in zip(one.train_dataloader(), other.train_dataloader(), strict=True):
        assert torch.equal(first["inputs"], second["inputs"])
        assert torch.equal(first["target"], second["target"])
    assert one.state_dict() == other.state_dict()


RECODINGS: dict[str, Any] = {
    "copy": lambda sex, _: sex,
    "numbers": lambda sex, _: sex.map({"f": 7, "m": 1}),
    "words": lambda sex, _: sex.map({"f": "Frau", "m": "Mann"}),
    "missing for one sex": lambda sex, _: sex.map({"f": "née"}),
}


@pytest.mark.parametrize("recoding", RECODINGS)
def test_recoding_of_s_is_refused(recoding: str) -> None:
    # the encoder has its own word about missing numbers
    extra = RECODINGS[recoding]
    filled = lambda sex, draw: extra(sex, draw).fillna(7 if recoding == "numbers" else "f")  # noqa: E731
    with pytest.raises(InputError, match=r"'extra' is the sensitive attribute 'sex'.*include_sensitive"):
        people(extra if recoding == "missing for one sex" else filled).setup()
    people(filled, include_sensitive=True).setup()


NEAR: dict[str, Any] = {
    "determines S": lambda sex, draw: np.where(sex == "f", draw.choice(["Ms", "Mrs"], 400), "Mr"),
    "one error": lambda sex, _: (sex == "f").mask(np.arange(400) == 8, sex != "f").astype(str),
    "scattered codes": lambda sex, draw: np.where(sex == "f", draw.choice([0, 2], 400), 1),
    "noisy number": lambda sex, draw: (sex == "f") + draw.normal(0, 0.05, 400),
}


@pytest.mark.parametrize("near", NEAR)
def test_column_that_all_but_tells_s_warns(near: str) -> None:
    with pytest.warns(UserWarning, match=r"'extra' almost determines .*'sex'.* name it in related"):
        people(NEAR[near]).setup()


HARMLESS: dict[str, Any] = {
    "identifier": lambda sex, _: [f"person {number}" for number in range(len(sex))],
    "number of the row": lambda sex, _: np.arange(len(sex)),
    "constant": lambda sex, _: np.full(len(sex), 0.1),
    "correlated": lambda sex, draw: (sex == "f") + draw.normal(0, 0.3, 400),
    "huge": lambda _, draw: draw.normal(0, 1e300, 400),
}


@pytest.mark.parametrize("harmless", HARMLESS)
def test_other_columns_pass(harmless: str) -> None:
    inputs = pd.DataFrame({"x": HARMLESS[harmless](people().read()["sex"], np.random.default_rng(0))})
    check_leakage(inputs, people().read()["sex"])


def test_adult_relationship_passes(adult_table: pd.DataFrame) -> None:
    assert 0.6 < association(adult_table["relationship"], adult_table["sex"]) < 0.7
    check_leakage(adult_table[list(AdultDataModule.default_related)], adult_table["sex"])


def test_few_rows_and_a_single_group_say_nothing() -> None:
    few = pd.Series(["f", "m"] * 9, name="sex")
    check_leakage(pd.DataFrame({"x": few}), few)
    alone = pd.Series(["f"] * 50, name="sex")
    check_leakage(pd.DataFrame({"x": alone}), alone)


def test_association_of_numbers_is_the_correlation() -> None:
    draw = np.random.default_rng(0)
    sex = pd.Series(draw.integers(0, 2, 5_000))
    number = sex + draw.normal(0, 1, 5_000)
    assert association(number, sex) == pytest.approx(np.corrcoef(number, sex)[0, 1])
    missing = number.mask(draw.random(5_000) < 0.1)
    assert association(missing, sex) == pytest.approx(number[missing.notna()].corr(sex), abs=1e-9)


def test_association_of_independent_categories_is_near_zero() -> None:
    draw = np.random.default_rng(0)
    towns, sex = pd.Series(draw.integers(0, 300, 2_000).astype(str)), pd.Series(draw.integers(0, 2, 2_000))
    assert association(towns, sex) < 0.15


@given(columns, st.permutations(["x", "y", "z"]))
def test_any_renaming_is_a_recoding(values: list[str | None], names: list[str]) -> None:
    column = pd.Series(values, dtype=object)
    renamed = column.map(dict(zip("abc", names, strict=True)))
    assert is_recoding(renamed, column)
    assert is_recoding(column, renamed)


@given(columns, st.data())
def test_association_is_a_share_and_full_for_recodings(values: list[str | None], data: st.DataObject) -> None:
    size = len(values)
    column = pd.Series(values, dtype=object)
    other = pd.Series(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    assert 0 <= association(column, other) <= 1 + 1e-9
    if is_recoding(column, other) and {True, False} <= set(other) and size > 4:
        assert association(column, other) == pytest.approx(1)
