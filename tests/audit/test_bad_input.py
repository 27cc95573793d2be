"""Wrong options and files of an audit are told in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairrf_lightning.audit.predictions import PredictionsFile
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from tests.audit.rows import write_predictions


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--groups race --prob probb", "no column 'probb'; did you mean 'prob'"),
        ("", "--groups is not given"),
        ("--groups race --nonsense 1", "--nonsense 1: not an option"),
        ("--groups prob", "combinations of values"),
        ("--groups sex,target", "--groups target: this column is the true class"),
        ("--groups prob,other", "too many to be groups"),
        ("--groups race --target sex", "column 'sex' has the value '.' in data row 1: expected 0 or 1"),
        (
            "--groups race --prob more",
            "column 'more' has the value 2.0 in data row 1: expected a probability",
        ),
        (
            "--groups race --prob holes",
            "column 'holes' has an empty cell in data row 8: expected a probability",
        ),
        ("--groups race --level 95", "level is 95"),
        ("--groups race --level abc", "--level: invalid float value"),
        ("--groups race --threshold 2", "--threshold 2"),
        ("--groups race --min_rows 0", "--min_rows 0"),
        ("--groups race --out p.parquet", "--out p.parquet: this is a file"),
    ],
)
def test_bad_input_is_told(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_predictions()
    rows.assign(more=2.0, holes=rows["prob"].where(rows.index != 7)).to_parquet("p.parquet")
    with pytest.raises(SystemExit) as error:
        main(["audit", "--predictions", "p.parquet", *options.split()])
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
def test_a_folder_that_cannot_be_written_to_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions()
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    # The file of predictions is not there: what cannot be written is told before it is read.
    for command in (["audit", "--predictions", "none.csv", "--groups", "sex"], ["report", "audit"]):
        with pytest.raises(SystemExit):
            main([*command, "--out", "p.csv/below"])
        printed = capsys.readouterr().err
        assert printed.startswith("error: p.csv/below: cannot be written to (Not a directory); name another")
        assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prob;target;sex\n0.5;1;f\n", "p.csv: its columns are separated by ';'; write it with commas."),
        (b"prob,target,sex\n0.5,1,\xfc\n", "invalid UTF8 data; save the file as UTF-8"),
        (b"prob,target,sex,\xfc\n0.5,1,f,1\n", "save the file as UTF-8"),
        (b"prob,target,sex\nhigh,1,f\n", "invalid value 'high'; expected numbers such as 0.25"),
    ],
)
def test_what_to_do_with_other_kinds_of_csv_is_told(
    content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.csv").write_bytes(content)
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
def test_the_row_of_a_wrong_value_counts_the_batches_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.audit.predictions._BATCH_ROWS", 100)
    rows = write_predictions()
    rows.loc[1233, "target"] = 3
    rows.to_parquet("p.parquet")
    with pytest.raises(InputError, match="'target' has the value 3 in data row 1,234: expected 0 or 1"):
        PredictionsFile(Path("p.parquet"), "target", ("sex",), "prob").count()


@pytest.mark.usefixtures("cli")
def test_two_columns_of_one_name_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.csv").write_text("target,prob,prob,sex\n1,0.2,0.3,f\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert "2 columns are named 'prob'" in capsys.readouterr().err


@pytest.mark.usefixtures("cli")
def test_without_a_model_there_is_nothing_to_audit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["audit", "--groups", "race"])
    assert error.value.code == 2
    assert "--ckpt_path and --data, or --predictions" in capsys.readouterr().err


@pytest.mark.usefixtures("cli")
def test_unreadable_files_are_told() -> None:
    Path("bad.parquet").write_bytes(b"PAR1 nonsense")
    Path("empty.csv").write_text("prob,target,race\n", encoding="utf-8")
    for name, message in (
        ("none.csv", "no such file"),
        ("bad.parquet", "cannot be read"),
        ("empty.csv", "no rows"),
    ):
        with pytest.raises(InputError, match=message):
            PredictionsFile(Path(name), "target", ("race",), "prob").count()
    write_predictions()
    with pytest.raises(InputError, match="--prob"):
        PredictionsFile(Path("p.csv"), "target", ("race",)).count()
