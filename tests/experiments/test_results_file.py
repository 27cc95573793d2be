"""Several processes add to one file of results, and nothing is lost."""

import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.results import ResultsFile

SCRIPT = Path(__file__).parents[2] / "train.py"


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


def test_two_grids_in_one_folder_lose_nothing(tmp_path: Path) -> None:
    options = ["grid", "--data", "synthetic", "--data.n_rows", "300", "--epochs", "2", "--seeds", "2"]
    options += ["--out", "shared", "--plot", "false", "--report", "false", "--workers", "1"]
    runs = [
        subprocess.Popen([sys.executable, str(SCRIPT), *options, "--eta", eta], cwd=tmp_path)
        for eta in ("0.3,0.4", "0.7")
    ]
    assert [run.wait() for run in runs] == [0, 0]
    results = pd.read_csv(tmp_path / "shared/results.csv")
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
