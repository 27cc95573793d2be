"""Samples with a known S: forms drawn from a table, and files with the table's columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.sensitive import count_answers, draw_form, read_audit_sample, read_sample
from fairrf_lightning.errors import InputError


def people(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 60, rows),
            "job": np.array(["a", "b", "c"])[rng.integers(0, 3, rows)],
            "hired": rng.integers(0, 2, rows),
        }
    )


@pytest.fixture
def data(tmp_path: Path) -> TableDataModule:
    people().to_csv(tmp_path / "people.csv", index=False)
    return TableDataModule(str(tmp_path / "people.csv"), target="hired", related=["age"], seed=0)


def filled(data: TableDataModule, path: Path, count: int = 60, **options: float) -> pd.DataFrame:
    form = draw_form(data, count, "gender", columns=["age"], **options)  # type: ignore[arg-type]
    form["gender"] = np.where(np.arange(count) % 2, "woman", "man")
    form.to_csv(path, index=False)
    return form


def test_form_is_a_random_sample_of_rows(data: TableDataModule) -> None:
    form = draw_form(data, 60, "gender", columns=["age"])
    assert form.columns.tolist() == ["row", "table", "age", "gender"]
    assert form["row"].is_unique
    assert (form["gender"] == "").all()
    assert form["age"].astype(int).tolist() == people()["age"].iloc[form["row"]].tolist()
    assert draw_form(data, 60, "gender")["row"].tolist() == form["row"].tolist()
    assert draw_form(data, 60, "gender", seed=1)["row"].tolist() != form["row"].tolist()
    drawn = np.concatenate([draw_form(data, 60, "gender", seed=seed)["row"] for seed in range(50)])
    counts = np.bincount(drawn, minlength=200)
    assert counts.min() >= 2
    assert counts.max() <= 29  # of 50 draws of 30 %


def test_form_of_a_split_has_rows_of_it_only(data: TableDataModule) -> None:
    rows = {int(row) for batch in data.rows_of("val") for row in batch["row"]}
    assert set(draw_form(data, 40, "gender", split="val")["row"]) == rows


def test_answers_meet_the_rows_that_they_belong_to(data: TableDataModule, tmp_path: Path) -> None:
    form = filled(data, tmp_path / "survey.csv", randomized=0.25)
    form.loc[3, "gender"] = ""
    form.sample(frac=1, random_state=0).to_csv(tmp_path / "survey.csv", index=False)
    sample = read_sample(tmp_path / "survey.csv", data, option="--survey", kinds=data.encoder.kinds)
    assert sample.sensitive == "gender"  # the only column that the table does not have
    assert (len(sample.frame), sample.unanswered, sample.randomized) == (59, 1, 0.25)
    assert sample.rows is not None
    assert sample.frame["age"].astype(int).tolist() == people()["age"].iloc[sample.rows].tolist()
    answers = dict(zip(form["row"], form["gender"], strict=True))
    assert [answers[row] for row in sample.rows] == sample.frame["gender"].tolist()
    assert sample.frame["hired"].astype(int).tolist() == people()["hired"].iloc[sample.rows].tolist()


def test_file_with_the_input_columns_is_read_as_well(data: TableDataModule, tmp_path: Path) -> None:
    asked = people(80, seed=1).assign(gender=["f", "m"] * 40)
    asked.loc[5, "gender"] = None
    asked.to_csv(tmp_path / "survey.csv", index=False)
    sample = read_sample(tmp_path / "survey.csv", data, option="--survey", kinds=data.encoder.kinds)
    assert sample.rows is None
    assert sample.frame["job"].tolist() == asked.drop(5)["job"].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda form: form.assign(table="0123456789ab"), "drawn from another table"),
        (lambda form: form.assign(row=form["row"] + 0.5), "not every line has the id of a row"),
        (lambda form: form.assign(row=form["row"] + 200), "not every line has the id of a row"),
        (lambda form: form.assign(row=7), "a person is there twice"),
        (lambda form: form.assign(randomized="x"), "expected one probability"),
        (lambda form: form.assign(randomized=[0.1, 0.2] * 30), "expected one probability"),
        (lambda form: form.assign(other=1), "gender, other are not in the data; name the column of S by"),
        (lambda form: form.drop(columns="gender"), "no column is not in the data"),
    ],
)
def test_damaged_form(data: TableDataModule, tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "survey.csv"
    assert callable(change)
    change(filled(data, path)).to_csv(path, index=False)
    with pytest.raises(InputError, match=message):
        read_sample(path, data, option="--survey", kinds=data.encoder.kinds)


@pytest.mark.parametrize(
    ("count", "columns", "message"),
    [
        (201, [], "expected 1 to 200"),
        (0, [], "expected 1 to 200"),
        (9, ["gender"], "not copied"),
        (9, ["agee"], "no column 'agee'"),
    ],
)
def test_form_that_cannot_be_drawn(
    data: TableDataModule, count: int, columns: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw_form(data, count, "gender", columns=columns)


def test_answers_are_counted_and_randomised_ones_are_refused_where_they_mislead(
    data: TableDataModule, tmp_path: Path
) -> None:
    form = filled(data, tmp_path / "survey.csv")
    assert count_answers(tmp_path / "survey.csv", "gender") == len(form)
    assert count_answers(tmp_path / "survey.csv", "sex") == 0
    form.assign(randomized=0.25).to_csv(tmp_path / "survey.csv", index=False)
    with pytest.raises(InputError, match=r"randomised \(0\.25\), which suggest does not"):
        read_audit_sample(tmp_path / "survey.csv", data, "gender", "suggest", features=["age"])


def test_missing_file_is_named_by_its_option(data: TableDataModule, tmp_path: Path) -> None:
    missing = tmp_path / "absent.csv"
    with pytest.raises(InputError) as raised:
        read_sample(missing, data, option="--survey")
    assert str(raised.value).startswith(f"--survey {missing} cannot be read: ")
