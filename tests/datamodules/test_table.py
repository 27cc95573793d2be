from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lightning import Trainer
from torch import Tensor

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.columns import check_column
from fairrf_lightning.errors import InputError
from fairrf_lightning.methods import KSMOTE
from tests.trainers import quiet_trainer


def people(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    sex = draw.choice(["f", "m"], rows)
    age = draw.integers(18, 70, rows)
    return pd.DataFrame(
        {
            "age": age,
            "zip": draw.choice(["01", "02", "03"], rows),
            "town": draw.choice(["x", "y"], rows),
            "sex": sex,
            "hired": np.where(age + 10 * (sex == "m") + draw.normal(0, 10, rows) > 50, "yes", "no"),
        }
    )


def write(frame: pd.DataFrame, folder: Path, name: str = "people.csv") -> str:
    path = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return str(path)


def table(path: str, **options: Any) -> TableDataModule:
    defaults: dict[str, Any] = {"target": "hired", "positive": "yes", "related": ["age"], "sensitive": "sex"}
    data = TableDataModule(path, **defaults | {"seed": 0} | options)
    data.setup("fit")
    return data


def all_rows(data: TableDataModule, key: str) -> Tensor:
    parts = data._parts.values()
    order = torch.cat([part["row"] for part in parts])
    return torch.cat([part[key] for part in parts])[order.argsort()]


def trainer(folder: Path, **options: Any) -> Trainer:
    return quiet_trainer(default_root_dir=folder, num_sanity_val_steps=0, log_every_n_steps=1, **options)


def trained(folder: Path, data: TableDataModule, epochs: int = 1) -> Path:
    fit = trainer(folder, max_epochs=epochs)
    fit.fit(FairRFModule(eta=0.3), datamodule=data)
    fit.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def evaluated(folder: Path, checkpoint: Path, data: TableDataModule) -> dict[str, Tensor]:
    model, test = FairRFModule.load_from_checkpoint(checkpoint), trainer(folder)
    test.test(model, datamodule=data, ckpt_path=checkpoint, verbose=False)
    return test.callback_metrics


@pytest.fixture(autouse=True)
def _say_what_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lightning.pytorch")


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz", "people.parquet"])
def test_formats_agree(tmp_path: Path, name: str) -> None:
    frame = people()
    data = table(write(frame, tmp_path, name), categorical=["zip"])
    assert data.feature_names == ["age", "zip=01", "zip=02", "zip=03", "town=x", "town=y"]
    assert data.related_columns == {"age": [0]}
    assert data.group_names == ["f", "m"]
    assert all_rows(data, "target").tolist() == (frame["hired"] == "yes").tolist()
    assert all_rows(data, "groups").tolist() == (frame["sex"] == "m").astype(int).tolist()
    inputs = all_rows(data, "inputs")
    assert inputs[:, 1].tolist() == (frame["zip"] == "01").tolist()
    train = data._parts["train"]["inputs"][:, 0]
    assert float(train.mean()) == pytest.approx(0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_csv_numbers_are_inferred_and_overridable(tmp_path: Path) -> None:
    path = write(people(), tmp_path)
    assert "zip" in table(path).encoder.scales
    assert "zip=02" in table(path, categorical=["zip"]).feature_names
    parquet = write(people(), tmp_path, "people.parquet")
    assert "zip=02" in table(parquet).feature_names
    assert "zip" in table(parquet, numeric=["zip"]).encoder.scales


def test_types_of_parquet(tmp_path: Path) -> None:
    frame = people().assign(
        member=[True, False] * 200, grade=[1.0, 2.5] * 200, job=pd.Categorical(["a", "b"] * 200)
    )
    data = table(write(frame, tmp_path, "p.parquet"), categorical=["grade"])
    assert {"member=false", "member=true", "grade=1", "grade=2.5", "job=a"} <= set(data.feature_names)


def test_dropped_columns_are_no_inputs(tmp_path: Path) -> None:
    data = table(write(people(), tmp_path), drop=["town", "zip"])
    assert data.feature_names == ["age"]


def test_training_batches_lack_s(tmp_path: Path) -> None:
    data = table(write(people(), tmp_path))
    assert set(next(iter(data.train_dataloader()))) == {"inputs", "target"}
    assert set(next(iter(data.val_dataloader()))) == {"inputs", "target", "groups"}
    assert not any(name.startswith("sex") for name in data.feature_names)
    assert "sex=f" in table(write(people(), tmp_path), include_sensitive=True).feature_names


def test_missing_values_get_categories_and_indicators(tmp_path: Path) -> None:
    frame = people().astype({"age": "float"})
    frame.loc[:39, "age"] = np.nan
    frame.loc[20:59, "town"] = None
    data = table(write(frame, tmp_path))
    assert data.feature_names == ["age", "zip", "age=(missing)", "town=x", "town=y", "town=(missing)"]
    assert data.related_columns == {"age": [0, 2]}
    inputs = all_rows(data, "inputs")
    assert inputs[:, 2].tolist() == frame["age"].isna().tolist()
    assert inputs[:, 5].tolist() == frame["town"].isna().tolist()
    median = frame["age"].iloc[data._parts["train"]["row"].numpy()].median()
    mean, std = data.encoder.scales["age"]
    assert float(inputs[0, 0]) == pytest.approx((median - mean) / std, abs=1e-5)


def test_rows_are_dropped_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = people().astype({"age": "float"})
    frame.loc[:29, "age"] = np.nan
    frame.loc[25:34, "hired"] = None
    data = table(write(frame, tmp_path), missing="drop")
    assert sum(data.split_sizes.values()) == 400 - 35
    assert data.feature_names == ["age", "zip", "town=x", "town=y"]
    assert "35 rows are left out, as they have no label or a missing value" in caplog.text


def test_rare_categories_are_folded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = people()
    frame.loc[:19, "town"] = [f"rare{n}" for n in range(20)]
    data = table(write(frame, tmp_path))
    towns = [name for name in data.feature_names if name.startswith("town=")]
    assert towns == ["town=x", "town=y", "town=(other)"]
    assert all_rows(data, "inputs")[:20, data.feature_names.index("town=(other)")].all()
    assert "folded into (other): town" in caplog.text
    few = table(write(frame, tmp_path), max_categories=1)
    assert sum(name.startswith("town=") for name in few.feature_names) == 2


def test_s_may_be_partly_or_wholly_unknown(tmp_path: Path) -> None:
    frame = people()
    frame.loc[::3, "sex"] = None
    data = table(write(frame, tmp_path))
    assert set(all_rows(data, "groups")[::3].tolist()) == {-1}
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(FairRFModule(eta=0.3), datamodule=data)
    assert "val_dp_gap" in fit.callback_metrics
    without = table(write(frame.drop(columns="sex"), tmp_path), sensitive=None)
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(FairRFModule(eta=0.3), datamodule=without)
    assert "val_acc" in fit.callback_metrics
    assert "val_dp_gap" not in fit.callback_metrics
    assert set(next(iter(without.val_dataloader()))) == {"inputs", "target"}


@pytest.mark.parametrize("positive", ["1", 1, 1.0, True, None])
@pytest.mark.parametrize("values", [[0, 1], [0.0, 1.0]])
def test_positive_is_matched_as_text_or_number(tmp_path: Path, positive: Any, values: list[Any]) -> None:
    frame = people()
    frame["hired"] = np.where(frame["hired"] == "yes", values[1], values[0])
    for name in ("p.csv", "p.parquet"):
        if positive is True:
            with pytest.raises(InputError, match="'hired' has no value 'true'"):
                table(write(frame, tmp_path, name), positive=positive)
        else:
            data = table(write(frame, tmp_path, name), positive=positive)
            assert all_rows(data, "target").tolist() == frame["hired"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "target is missing"),
        ({"target": "hire"}, "target: there is no column 'hire'; did you mean 'hired'"),
        ({"sensitive": "sx"}, "sensitive: there is no column 'sx'; did you mean 'sex'"),
        ({"related": ["agee"]}, "related: there is no column 'agee'; did you mean 'age'"),
        ({"related": ["Age"]}, "no column 'Age'; did you mean 'age'"),
        ({"related": []}, "related is empty"),
        ({"related": ["sex"]}, "include_sensitive"),
        ({"drop": ["twon"]}, "drop: there is no column 'twon'; did you mean 'town'"),
        ({"drop": ["age"]}, "related: 'age' is also named in drop"),
        ({"categorical": ["x"]}, "categorical: there is no column 'x'"),
        ({"categorical": ["zip"], "numeric": ["zip"]}, "categorical: 'zip' is also named in numeric"),
        ({"sensitive": "hired"}, "target: 'hired' is also named as sensitive"),
        ({"positive": "Yes"}, "'hired' has no value 'Yes'; did you mean 'yes'"),
        ({"positive": None}, "say which value of 'hired' is the positive one: no, yes"),
        ({"target": "zip", "positive": 1}, r"'zip' has 3 value\(s\) \(1, 2, 3\), but must have two"),
        ({"numeric": ["town"]}, "'town' has 400 values that are no numbers, such as '"),
        ({"sensitive": "age"}, "'age' has 52 values; gaps compare up to 50 groups"),
        ({"delimiter": ";;"}, "delimiter must be one ASCII character"),
        ({"encoding": "utf-99"}, "'utf-99' is not known"),
        ({"min_count": 0}, "min_count = 0: expected 1 or more"),
        ({"num_workers": -1}, "num_workers = -1: expected 0 or more"),
    ],
)
def test_wrong_option_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write(people(), tmp_path)
    with pytest.raises(InputError, match=message):
        table(path, **options | ({"related": ["town"]} if options.get("sensitive") == "age" else {}))


def test_an_error_shows_the_first_of_many_columns() -> None:
    with pytest.raises(InputError, match=r"'c5_'; did you mean 'c5' or .*\? Choices: c0,") as caught:
        check_column("drop", "c5_", [f"c{number}" for number in range(90)])
    assert str(caught.value).count("c17") == 1
    assert str(caught.value).endswith("c49, ... (90 in all)")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file or directory .*nowhere.csv"):
        TableDataModule(str(tmp_path / "nowhere.csv"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"born": pd.date_range("1990-01-01", periods=400).astype(str)}, "'born' holds dates"),
        ({"born": ["13/05/1990", "1/2/99"] * 200}, "'born' holds dates"),
        ({"name": [f"person {n}" for n in range(400)]}, "'name' has 200 distinct values in 200 rows"),
        (
            {"pay": [*map(str, range(399)), "unknown"]},
            "'pay' has 1 values that are no numbers, such as 'unknown': name th",
        ),
        (
            {"pay": ["1,5", "2", "2.500,75"] * 133 + ["3"]},
            "'pay' has numbers such as '1,5': write them with a d",
        ),
        ({"pay": ["12 %", "7.5%"] * 200}, "'pay' has numbers such as '12 %'"),
        ({"pay": ["$1,500.50", "$3"] * 200}, "'pay' has numbers such as '"),
        ({"pay": [1.0] * 399 + [np.inf]}, "'pay' has 1 infinite values"),
        ({"pay": [1e308, -1e308] * 200}, "'pay' has numbers too large"),
    ],
)
def test_unusable_column_is_refused_with_advice(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        table(write(people().assign(**columns), tmp_path))


@pytest.mark.parametrize("values", [["1", "2", "A"], ["18-25", "26-40"], ["01067-1", "2"], ["1.2.3", "1.2"]])
def test_codes_with_signs_are_categories(tmp_path: Path, values: list[str]) -> None:
    data = table(write(people().assign(code=np.resize(values, 400)), tmp_path))
    assert data.encoder.categories["code"] == sorted(values)


def test_columns_that_carry_nothing_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = people().assign(id=range(7, 407), order=np.arange(400) // 2, five=5, word="x")
    for name in ("p.csv", "p.parquet"):
        data = table(write(frame, tmp_path, name), related=["age", "five", "word"])
        notice = "column 'id' numbers the rows, and is an input of the model. To leave it out: --data.drop."
        assert data.notices() == [notice]
    for name in ("five", "word"):
        assert f"related column '{name}' has the same value in all training rows" in caplog.text
    assert "'age' has the same value" not in caplog.text


def test_typed_dates_and_lists_are_refused(tmp_path: Path) -> None:
    dated = people().assign(born=pd.Timestamp("2000-01-01"))
    with pytest.raises(InputError, match=r"dates.*drop: \[born\]"):
        table(write(dated, tmp_path, "p.parquet"))
    assert "born" not in table(write(dated, tmp_path, "p.parquet"), drop=["born"]).encoder.owners
    assert "born" in table(write(dated, tmp_path, "p.parquet"), categorical=["born"]).encoder.owners
    for value in ([1, 2], b"x"):
        listed = people().assign(tags=pd.Series([value] * 400, dtype=object))
        with pytest.raises(InputError, match="'tags' is of type"):
            table(write(listed, tmp_path, "p.parquet"))
        with pytest.raises(InputError, match="'tags' is of type"):
            table(write(listed, tmp_path, "p.parquet"), categorical=["tags"])
    with pytest.raises(InputError, match="cannot become numbers"):
        table(
            write(people().assign(tags=pd.Series([[1]] * 400, dtype=object)), tmp_path, "p.parquet"),
            numeric=["tags"],
        )


def test_words_for_missing_numbers_can_be_named(tmp_path: Path) -> None:
    frame = people().astype({"age": object})
    frame.loc[:9, "age"] = "?"
    data = table(write(frame, tmp_path), missing_values=["?"])
    assert data.encoder.indicators == ["age"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    frame = people().astype({"age": "float"})
    frame.loc[:39, "age"] = np.nan
    return trained(folder, table(write(frame, folder), categorical=["zip"]), epochs=2)


def predict(path: str, checkpoint: Path, folder: Path) -> dict[str, Tensor]:
    model = FairRFModule.load_from_checkpoint(checkpoint)
    found: Any = trainer(folder).predict(model, datamodule=TableDataModule(path), ckpt_path=checkpoint)
    return {key: torch.cat([batch[key] for batch in found]) for key in found[0]}


@pytest.mark.parametrize("name", ["new.csv", "new.parquet"])
def test_prediction_needs_the_checkpoint_only(checkpoint: Path, tmp_path: Path, name: str) -> None:
    new = people(77, seed=1).drop(columns=["hired", "sex"])
    new.loc[0, "town"] = "never seen"
    new.loc[1, "town"] = None
    found = predict(write(new, tmp_path, name), checkpoint, tmp_path)
    assert found["row"].tolist() == list(range(77))
    shuffled = new[["town", "zip", "age"]].assign(more="unused")
    again = predict(write(shuffled, tmp_path, name), checkpoint, tmp_path)
    assert torch.equal(found["probability"], again["probability"])


def test_prediction_equals_the_test_rows(checkpoint: Path, tmp_path: Path) -> None:
    data = table(str(checkpoint.parent / "people.csv"), categorical=["zip"])
    model = FairRFModule.load_from_checkpoint(checkpoint).eval()
    with torch.no_grad():
        expected = model.penalty.probabilities(model(all_rows(data, "inputs")))
    found = predict(str(checkpoint.parent / "people.csv"), checkpoint, tmp_path)
    torch.testing.assert_close(found["probability"], expected)


def test_prediction_without_an_encoding_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = FairRFModule.load_from_checkpoint(checkpoint)
    data = TableDataModule(write(people(), tmp_path), target="hired", positive="yes", related=["age"])
    with pytest.raises(InputError, match="give the checkpoint"):
        trainer(tmp_path).predict(model, datamodule=data)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (people(10).assign(age=1e300), "'age' has 10 numbers far outside the training range"),
        (people(10).rename(columns={"town": "twon"}), "there is no column 'town'; did you mean 'twon'"),
    ],
)
def test_rows_that_cannot_be_predicted(
    checkpoint: Path, tmp_path: Path, new: pd.DataFrame, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        predict(write(new, tmp_path), checkpoint, tmp_path)


def test_prediction_after_dropping_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = trained(tmp_path, table(write(people(), tmp_path), missing="drop"))
    new = people(10).astype({"age": "float"})
    new.loc[3, "age"] = np.nan
    caplog.clear()
    found = predict(write(new, tmp_path), checkpoint, tmp_path)
    assert found["row"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert "1 rows are left out, as they have a missing value" in caplog.text


def test_checkpoint_knows_the_columns_for_testing(checkpoint: Path, tmp_path: Path) -> None:
    assert torch.load(checkpoint, weights_only=True)["TableDataModule"]["label_codes"] == {"no": 0, "yes": 1}
    data = TableDataModule(str(checkpoint.parent / "people.csv"))
    assert "test_dp_gap" in evaluated(tmp_path, checkpoint, data)
    same = table(str(checkpoint.parent / "people.csv"), categorical=["zip"])
    assert data.state_dict() == same.state_dict()


def test_another_table_is_tested_with_a_warning(checkpoint: Path, tmp_path: Path) -> None:
    data = TableDataModule(write(people(seed=5), tmp_path))
    with pytest.warns(UserWarning, match="not the table that the checkpoint was trained on"):
        evaluated(tmp_path, checkpoint, data)
    assert data.split_sizes == {"train": 200, "val": 80, "test": 120}


def test_another_target_than_trained_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    data = TableDataModule(write(people(), tmp_path), target="town")
    with pytest.raises(InputError, match="trained for 'hired'"):
        evaluated(tmp_path, checkpoint, data)


def test_s_may_be_named_after_training(tmp_path: Path) -> None:
    checkpoint = trained(tmp_path, table(write(people(), tmp_path), sensitive=None, drop=["sex"]))
    audited = TableDataModule(str(tmp_path / "people.csv"), sensitive="sex")
    assert "test_dp_gap" in evaluated(tmp_path, checkpoint, audited)
    assert not audited.include_sensitive


@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
def test_command_line(cli: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(people(), tmp_path)
    options = "--data.target hired --data.positive yes --data.related [age,zip] --trainer.max_epochs 1"
    cli(f"fit --data table --data.path people.csv --data.drop [sex] {options}")
    assert "Gaps are not reported" in capsys.readouterr().out
    write(people(30, seed=3).drop(columns=["hired", "sex"]), tmp_path, "new.csv")
    checkpoint = "lightning_logs/version_0/checkpoints/last.ckpt"
    cli(f"predict --data table --data.path new.csv --ckpt_path {checkpoint}")
    assert pd.read_csv("predictions.csv")["row"].tolist() == list(range(30))
    cli(f"test --data table --data.path people.csv --data.sensitive sex --ckpt_path {checkpoint}")
    assert "Groups: f, m. Trained without: sex." in capsys.readouterr().out


def test_copy_of_s_is_refused(tmp_path: Path) -> None:
    frame = people().assign(gender=lambda table: table["sex"].map({"f": "woman", "m": "man"}))
    with pytest.raises(InputError, match="'gender' is the sensitive attribute 'sex' in other words"):
        table(write(frame, tmp_path))
    table(write(frame, tmp_path), drop=["gender"])


def test_more_groups_may_be_audited_than_trained_with(tmp_path: Path) -> None:
    data = table(write(people(), tmp_path), sensitive=None, drop=["sex"], categorical=["zip"])
    checkpoint = trained(tmp_path, data)
    for groups, number in ((None, 3), (["01", "03"], 2)):
        audited = TableDataModule(str(tmp_path / "people.csv"), sensitive="zip", groups=groups)
        assert "test_dp_gap" in evaluated(tmp_path, checkpoint, audited)
        assert audited.num_groups == number
        assert audited.include_sensitive


METHODS: list[tuple[dict[str, Any], list[str], dict[str, list[int]]]] = [
    ({"expose_sensitive": True}, ["age", "zip", "town=x", "town=y"], {"sex": [0, 1]}),
    ({"remove_related": True, "related": ["age", "town"]}, ["zip"], {"age": [0], "town": [1, 2]}),
    ({"remove_related": True, "missing": "drop"}, ["zip", "town=x", "town=y"], {"age": [0]}),
    ({"ksmote": KSMOTE()}, ["age", "zip", "town=x", "town=y"], {"cluster": [0, 1, 2, 3]}),
]


@pytest.mark.parametrize(("options", "inputs", "columns"), METHODS)
def test_methods_work_for_a_table(
    tmp_path: Path, options: dict[str, Any], inputs: list[str], columns: dict[str, list[int]]
) -> None:
    frame = people().astype({"age": "float"})
    if "missing" in options:
        frame.loc[:30, "age"] = np.nan
    path = write(frame, tmp_path)
    data = table(path, **options)
    assert data.feature_names == inputs
    assert data.related_columns == columns
    again = TableDataModule(path, seed=9)
    again.load_state_dict(data.state_dict())
    assert again.state_dict() == data.state_dict()
    for part, tensors in data._parts.items():
        assert all(torch.equal(again._parts[part][key], tensor) for key, tensor in tensors.items())
    (rows,) = data.rows_of("test")
    assert data.read_columns(["sex"]).iloc[rows["row"].numpy()]["sex"].tolist() == [
        data.group_names[group] for group in rows["groups"]
    ]
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "0.parquet")
    with pytest.raises(InputError, match=f"{next(iter(options))}: .* is a directory, for which"):
        table(str(tmp_path), **options)


def test_s_that_is_not_known_cannot_be_exposed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expose_sensitive: name the column of S by sensitive"):
        table(write(people(), tmp_path), sensitive=None, expose_sensitive=True)


def test_compressed_file_is_known_by_its_content(tmp_path: Path) -> None:
    text = people().to_csv(index=False)
    (tmp_path / "people").write_bytes(gzip.compress(text.encode()))
    assert sum(table(str(tmp_path / "people")).split_sizes.values()) == 400


ROWS = 60
ODD = {
    "list": pa.array([[n % 2] for n in range(ROWS)]),
    "struct": pa.array([{"a": n % 2} for n in range(ROWS)]),
    "map": pa.array([[("k", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"x", b"y"] * (ROWS // 2)),
}
PLAIN = {"age": pa.array(np.arange(ROWS) % 7), "hired": pa.array(np.arange(ROWS) % 2)}


@pytest.fixture(params=["directory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pq.write_table(pa.table(PLAIN | ODD), tmp_path / "people.parquet")
    return str(tmp_path if request.param == "directory" else tmp_path / "people.parquet")


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("option", ["sensitive", "categorical", "target", "related"])
def test_column_of_another_type_is_refused(path: str, name: str, option: str) -> None:
    named: Any = name if option in ("sensitive", "target") else [name]
    options: dict[str, Any] = {"target": "hired", "related": ["age"], "drop": [n for n in ODD if n != name]}
    data = TableDataModule(path, **options | {option: named}, seed=0)
    with pytest.raises(InputError) as caught:
        data.setup("fit")
    message = str(caught.value)
    assert message.startswith(f"column '{name}' is of type {name}")
    assert f"leave it out (drop: [{name}])" in message


def test_type_is_checked_in_every_file(tmp_path: Path) -> None:
    texts = {"sex": pa.array(["f", "m"] * (ROWS // 2))}
    pq.write_table(pa.table(PLAIN | texts), tmp_path / "0.parquet")
    pq.write_table(pa.table(PLAIN | {"sex": ODD["list"]}), tmp_path / "1.parquet")
    data = TableDataModule(str(tmp_path), target="hired", related=["age"], sensitive="sex", seed=0)
    with pytest.raises(InputError, match="column 'sex' is of type list"):
        data.setup("fit")
