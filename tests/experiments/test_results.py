"""A result is reused only if everything that can change it is the same, and no result is lost."""

import inspect
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import (
    AdultDataModule,
    COMPASDataModule,
    LSACDataModule,
    SyntheticDataModule,
    TableDataModule,
)
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, run_settings
from fairrf_lightning.experiments.results import ResultsFile, data_identity, model_identity
from tests.conftest import Refused

TABLE = ["--data", "table", "--data.target", "label", "--data.positive", "1", "--data.sensitive", "group"]
TABLE += ["--data.related", "[height,income]"]
SHORT = ["--epochs", "2", "--seeds", "1", "--plot", "false"]
OPTIONS: dict[str, Any] = {"target": "label", "positive": 1, "sensitive": "group", "related": ["height"]}


@pytest.fixture(autouse=True)
def _two_tables(_in_an_empty_folder: None) -> None:
    for number, name in enumerate(("one.csv", "other.csv")):
        people = SyntheticDataModule(n_rows=400, table_seed=number).read()
        people["area"] = ["north", "south", "east", "west"] * 100
        people.to_csv(name, index=False)


def grid(path: str, folder: str, *more: str) -> None:
    main(["grid", *TABLE, "--data.path", path, *SHORT, "--eta", "0.3", "--out", folder, *more])


def numbers(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("│")]


def test_a_second_table_in_the_same_folder_is_trained_and_prints_its_own_numbers(
    capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    printed = {}
    for name, (path, folder) in {
        "one": ("one.csv", "shared"),
        "other": ("other.csv", "shared"),
        "alone": ("other.csv", "alone"),
        "again": ("one.csv", "shared"),
    }.items():
        grid(path, folder, "--report", "false")
        printed[name] = numbers(capsys.readouterr().out)
    assert printed["other"] == printed["alone"]
    assert printed["other"] != printed["one"]
    assert printed["again"] == printed["one"]
    results = pd.read_csv("shared/results.csv")
    assert len(results) == 4, "the third run found its models"
    assert "several experiments, which differ in data_sha256" in refused("report shared")


def test_a_sweep_of_another_table_is_not_taken_for_the_first_one(
    refused: Refused,
) -> None:
    sweep = ["sweep", *TABLE, *SHORT, "--trials", "1", "--out", "shared"]
    main([*sweep, "--data.path", "one.csv"])
    assert "was started with other options (data_sha256)" in refused([*sweep, "--data.path", "other.csv"])


@pytest.mark.parametrize(
    "change",
    [
        {"positive": 0},
        {"sensitive": None},
        {"related": ["income"]},
        {"groups": ["a", "b"]},
        {"drop": ["lottery"]},
        {"categorical": ["lottery"]},
        {"missing": "drop"},
        {"missing_values": ["south"]},
        {"min_count": 200},
        {"max_categories": 2},
        {"batch_size": 64},
        {"eval_batch_size": 64},
        {"include_sensitive": True},
        {"split": (0.6, 0.2, 0.2)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_option_of_a_table_makes_another_result(change: dict[str, Any]) -> None:
    one = data_identity(TableDataModule("one.csv", **OPTIONS))
    assert data_identity(TableDataModule("one.csv", **OPTIONS | change)) != one


def test_the_content_counts_not_the_place_of_the_file() -> None:
    one = data_identity(TableDataModule("one.csv", **OPTIONS))
    Path("elsewhere").mkdir()
    Path("one.csv").rename("elsewhere/moved.csv")
    assert data_identity(TableDataModule("elsewhere/moved.csv", **OPTIONS)) == one
    table = pd.read_csv("elsewhere/moved.csv")
    last = table.index == 399
    table.assign(height=table["height"].where(~last, 0.0)).to_csv("elsewhere/moved.csv", index=False)
    assert data_identity(TableDataModule("elsewhere/moved.csv", **OPTIONS)) != one


def test_other_versions_make_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    one = data_identity(TableDataModule("one.csv", **OPTIONS))
    monkeypatch.setattr("fairrf_lightning.experiments.results.version", lambda _: "0.0.1")
    assert data_identity(TableDataModule("one.csv", **OPTIONS))["versions"] != one["versions"]


class _Hidden(SyntheticDataModule):
    """Reads rows that none of its options names."""

    def read(self) -> pd.DataFrame:
        return pd.concat([super().read(), super().read()], ignore_index=True)


def test_what_a_data_module_of_ones_own_reads_is_part_of_its_identity() -> None:
    plain, own = (data_identity(made(n_rows=50)) for made in (SyntheticDataModule, _Hidden))
    assert plain["data_sha256"] != own["data_sha256"]


@pytest.mark.parametrize(
    "made", [AdultDataModule, COMPASDataModule, LSACDataModule, SyntheticDataModule, TableDataModule]
)
def test_every_argument_of_a_data_module_is_one_of_its_options(made: Any) -> None:
    data = made("one.csv", **OPTIONS) if made is TableDataModule else made(batch_size=64)
    owners = [
        owner for owner in made.__mro__[:-1] if "__init__" in vars(owner) and "fairrf" in owner.__module__
    ]
    arguments = {name for owner in owners for name in inspect.signature(owner).parameters} - {"kwargs"}
    assert {"related", "seed"} < arguments <= set(data.options)


@pytest.mark.parametrize(
    ("setting", "schedule"),
    [
        (Setting(dropout=0.2), Schedule()),
        (Setting(hidden=(8,)), Schedule()),
        (Setting(expose_sensitive=True), Schedule()),
        (Setting(pretrain_steps=3), Schedule()),
        (Setting(), Schedule(lr=0.01)),
    ],
)
def test_every_option_of_the_model_makes_another_result(setting: Setting, schedule: Schedule) -> None:
    data = SyntheticDataModule(n_rows=50)
    known = data_identity(data)
    plain = model_identity(known, data, Setting(), 0, Schedule())
    assert model_identity(known, data, setting, 0, schedule)["key"] != plain["key"]
    assert model_identity(known, data, Setting(), 0, Schedule()) == plain


def test_a_directory_is_refused_before_anything_is_trained() -> None:
    Path("parts").mkdir()
    pd.read_csv("one.csv").to_parquet("parts/one.parquet")
    with pytest.raises(InputError, match="name a file, not a directory"):
        data_identity(TableDataModule("parts", **OPTIONS))


def _add(path: Path, process: int, rows: int) -> None:
    results = ResultsFile(path)
    for number in range(rows):
        results.add([{"key": f"{process}-{number}", "remove": "", "eta": 0.1, "value": number / 7}])


# Forking a process with threads is discouraged by Python 3.12; these processes start no thread.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_rows_of_processes_that_write_at_once_are_all_kept(tmp_path: Path) -> None:
    path, context = tmp_path / "new" / "results.csv", get_context("fork")
    processes = [context.Process(target=_add, args=(path, number, 15)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = ResultsFile(path).frame
    assert sorted(found["key"]) == sorted(f"{p}-{n}" for p in range(3) for n in range(15))
    assert [file.name for file in path.parent.iterdir() if file.suffix != ".lock"] == ["results.csv"]


def test_a_grid_that_ends_while_another_one_trains_loses_nothing(tmp_path: Path) -> None:
    path, schedule = tmp_path / "shared/results.csv", Schedule(epochs=2)
    data = partial(SyntheticDataModule, n_rows=300)
    others = [Setting(eta=eta) for eta in (0.0, 0.7)]

    def run_another(work: int) -> None:
        if work and not path.is_file():
            run_settings(data, others, [0, 1], schedule, path=path)

    mine = [Setting(eta=eta) for eta in (0.0, 0.3, 0.4)]
    run_settings(data, mine, [0, 1], schedule, path=path, advance=run_another)
    results = pd.read_csv(path)
    assert sorted(results["eta"]) == [0, 0, 0.3, 0.3, 0.4, 0.4, 0.7, 0.7]
    assert results["key"].is_unique


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    etas = [0.1 + 0.2, 1 / 3, 1e-5 / 7]
    rows = [
        {"key": str(n), "remove": "", "hidden": "64", "related": "7", "eta": e} for n, e in enumerate(etas)
    ]
    ResultsFile(path).add(rows)
    found = ResultsFile(path).frame
    assert found["eta"].tolist() == etas
    assert found[["remove", "hidden", "related"]].iloc[0].tolist() == ["", "64", "7"]


@pytest.mark.parametrize("content", [b"", b'key\n"open', b"\xff\xfe\x00"])
def test_a_damaged_file_is_not_overwritten(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"results\.csv"):
        ResultsFile(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        ResultsFile(tmp_path / "file" / "results.csv").check_writable()
