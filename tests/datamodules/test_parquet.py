"""A converted CSV file is read as the CSV file itself, block by block."""

from __future__ import annotations

import gzip
import json
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import files
from fairrf_lightning.datamodules.columns import Kind, TableSpec, infer_kinds, make_frame
from fairrf_lightning.datamodules.encoding import EncoderFit
from fairrf_lightning.datamodules.files import CsvFile, csv_to_parquet, read_file
from fairrf_lightning.datamodules.parquet import ParquetDirectory
from fairrf_lightning.errors import InputError

ROWS = 3000
SPEC = TableSpec(target="hired", sensitive="sex", min_count=1)


def people() -> dict[str, list[str]]:
    draw = np.random.default_rng(0)

    def column(values: list[str]) -> list[str]:
        return [values[int(n)] for n in draw.integers(0, len(values), ROWS)]

    return {
        "age": [str(age) for age in draw.integers(18, 70, ROWS)],
        "pay": [f"{pay:.2f}" for pay in draw.random(ROWS) * 1000],
        "weight": [repr(float(weight)) for weight in draw.standard_normal(ROWS)],
        "zip": [f"{zip_:05}" for zip_ in draw.integers(0, 30, ROWS)],
        "grade": column(["1", "2", "3", "4a", "4b"]),
        "late_text": ["7"] * (ROWS - 1) + ["seven"],
        "blank": column([" 1", "2 ", "NA", "", "nan"]),
        "huge": column(["1e30", "-2E-5", "+3", ".5", "4."]),
        "empty": [""] * ROWS,
        "town": column(["Köln", '"New\nYork"', '"a ""b"", c"', " x ", "null"]),
        "truth": column(["True", "false", "TRUE"]),
        "sex": column(["f", "m", "NA"]),
        "hired": column(["yes", "no"]),
    }


def write(path: Path, columns: dict[str, list[str]], encoding: str = "utf-8", delimiter: str = ",") -> Path:
    lines = [delimiter.join(columns), *map(delimiter.join, zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", 1 << 13)


def in_memory(path: Path, spec: TableSpec, **options: Any) -> tuple[dict[str, Kind], pd.DataFrame]:
    raw = read_file(path, **options)
    features = spec.features(raw.table.column_names)
    kinds = infer_kinds(raw.table, features, spec, typed=raw.typed)
    return kinds, make_frame(raw.table, kinds | {"sex": "category", "hired": "category"}, spec)


def streamed(path: Path, spec: TableSpec) -> tuple[dict[str, Kind], list[pd.DataFrame]]:
    directory = ParquetDirectory(path)
    features = spec.features(directory.empty_table.column_names)
    kinds = infer_kinds(directory.empty_table, features, spec, typed=True)
    wanted: dict[str, Kind] = kinds | {"sex": "category", "hired": "category"}
    assert len(directory.row_groups) > 20
    return kinds, [f for group in directory.row_groups for _, f in directory.read(group, wanted, spec)]


def assert_same(csv: Path, folder: Path, spec: TableSpec = SPEC, **options: Any) -> None:
    kinds, frame = in_memory(csv, spec, **options)
    same_kinds, parts = streamed(folder, spec)
    assert same_kinds == kinds
    texts = {name: object for name in frame if frame[name].dtype == "category"}
    joined = pd.concat([part.astype(texts) for part in parts], ignore_index=True)
    pd.testing.assert_frame_equal(joined, frame.astype(texts), check_exact=True)
    whole, by_part = (EncoderFit(kinds, spec) for _ in range(2))
    whole.update(frame)
    for part in parts:
        by_part.update(part)
    one, other = whole.encoder(["age"]).state(), by_part.encoder(["age"]).state()
    assert flat(one.pop("scales")) == pytest.approx(flat(other.pop("scales")), rel=1e-12)
    assert one == other


def flat(scales: dict[str, list[float]]) -> dict[str, float]:
    return {f"{name}{n}": value for name, pair in scales.items() for n, value in enumerate(pair)}


def test_kinds_cells_and_encoding_are_those_of_the_csv_file(tmp_path: Path) -> None:
    csv = write(tmp_path / "people.csv", people())
    assert csv_to_parquet(csv, tmp_path / "out") == tmp_path / "out" / "people.parquet"
    assert_same(csv, tmp_path / "out")
    as_categories = TableSpec(target="hired", sensitive="sex", categorical=("zip", "pay"), min_count=1)
    assert_same(csv, tmp_path / "out", as_categories)


@pytest.mark.parametrize(("encoding", "delimiter"), [("cp1252", ";"), ("utf-16", ","), ("utf-8-sig", "\t")])
def test_encoding_delimiter_and_compression(tmp_path: Path, encoding: str, delimiter: str) -> None:
    columns = {name: [cell.replace(delimiter, "") for cell in cells] for name, cells in people().items()}
    csv = write(tmp_path / "people.csv", columns, encoding, delimiter)
    packed = tmp_path / "people.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    options: dict[str, Any] = {
        "encoding": None if encoding == "utf-8-sig" else encoding,
        "delimiter": delimiter,
    }
    for number, path in enumerate([csv, packed]):
        csv_to_parquet(path, tmp_path / str(number), **options)
        assert_same(csv, tmp_path / str(number), **options)


def test_missing_values_dropped_and_categorical_columns(tmp_path: Path) -> None:
    columns = people()
    columns["age"][17] = columns["pay"][ROWS - 1] = "?"
    columns["late_text"] = [*columns["age"][:-1], "seven"]
    csv = write(tmp_path / "people.csv", columns)
    written = csv_to_parquet(
        csv,
        tmp_path / "out",
        missing_values=["?", "NA", "null", "nan"],
        categorical=["late_text"],
        drop=["zip"],
    )
    spec = TableSpec(
        target="hired",
        sensitive="sex",
        missing_values=("", "?", "NA", "null", "nan"),
        categorical=("late_text",),
        drop=("zip",),
        min_count=1,
    )
    assert "zip" not in pq.read_schema(written).names
    assert_same(csv, tmp_path / "out", spec)


def broken(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "broken.csv"
    head = "age,hired\n"
    contents = {
        "mostly numbers": head + "".join(f"{n},yes\n" for n in range(2000)) + "x7,no\nx8,no\nx7,no\n",
        "NUL": head + "1,yes\n" * 3000 + "\0,no\n",
        "ragged": head + "1,yes\n" * 3000 + "1,2,3\n",
        "no rows": head,
        "empty": "",
        "one column": "age;hired\n1;yes\n",
        "twice": "age,age\n1,2\n",
    }
    path.write_bytes(b"age,hired\n1,\xe4\n" if name == "encoding" else contents[name].encode())
    return path


@pytest.mark.parametrize(
    "name",
    ["mostly numbers", "NUL", "ragged", "no rows", "empty", "one column", "twice", "encoding"],
)
def test_bad_files_are_refused_with_the_same_words(tmp_path: Path, name: str) -> None:
    path = broken(tmp_path, name)
    with pytest.raises(InputError) as by_memory:
        in_memory(path, TableSpec(target="hired"))
    with pytest.raises(InputError) as by_block:
        csv_to_parquet(path, tmp_path / "out")
    assert str(by_block.value) == str(by_memory.value)
    assert not list(tmp_path.rglob("*.part*"))


def test_other_obstacles_are_named(tmp_path: Path) -> None:
    csv = write(tmp_path / "people.csv", people())
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(csv.read_bytes())[:-500])
    with pytest.raises(InputError, match=r"cut\.csv\.gz is a damaged gzip file"):
        csv_to_parquet(tmp_path / "cut.csv.gz", tmp_path / "out")
    with pytest.raises(InputError, match="drop: there is no column 'zap'; did you mean 'zip'"):
        csv_to_parquet(csv, tmp_path / "out", drop=["zap"])
    written = csv_to_parquet(csv, tmp_path / "out")
    with pytest.raises(InputError, match="holds Parquet files already"):
        csv_to_parquet(csv, tmp_path / "out")
    with pytest.raises(InputError, match="is a Parquet file already"):
        csv_to_parquet(written, tmp_path / "other")
    with pytest.raises(InputError, match=r"nowhere\.csv cannot be read"):
        csv_to_parquet(tmp_path / "nowhere.csv", tmp_path / "other")


def test_the_printed_commands_convert_and_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    csv = write(tmp_path / "the people.csv", people())
    monkeypatch.setattr(files, "_LARGE_BYTES", 1000)
    notices: list[str] = []
    monkeypatch.setattr(files, "rank_zero_info", notices.append)
    read_file(csv)
    command = notices[0].partition("convert it once: python train.py ")[2]
    assert command == f"to_parquet '{csv}' 'the people_parquet'"
    main(shlex.split(command))
    printed = capsys.readouterr().out
    assert f"{ROWS:,} rows are in the people_parquet" in printed
    options = printed.partition("Train on them: ")[2].strip()
    rest = "--data.target hired --data.positive yes --data.related [age] --data.sensitive sex "
    rest += "--data.drop [zip,weight] --trainer.max_epochs 1 --trainer.accelerator cpu"
    main(["fit", *shlex.split(options), *rest.split()])
    assert "Test split" in capsys.readouterr().out


def test_too_little_memory_is_said_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # nothing of it is on the disk, and reading it would take hours
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    try:
        assert (files.available_memory() or 0) <= 1 << 30
        with pytest.raises(InputError) as caught:
            read_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    message = str(caught.value)
    assert "1099.5 GB of CSV take 5497.6 GB of memory or more" in message
    assert f"python train.py to_parquet {path} people_parquet" in message
    assert len(message.splitlines()) == 3


def test_size_of_a_packed_file_is_that_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" * 100_000))
    assert files.csv_bytes(tmp_path / "a.csv.gz") == 400_000
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    assert files.csv_bytes(tmp_path / "a.parquet") == 0


def test_what_the_file_notes(tmp_path: Path) -> None:
    written = csv_to_parquet(write(tmp_path / "people.csv", people()), tmp_path / "out")
    noted = json.loads(pq.read_schema(written).metadata[b"fairrf_numeric_texts"])
    assert noted == ["age", "pay", "weight", "zip", "blank", "huge", "empty"]


def test_the_printed_command_has_the_options_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {name: [cell.replace(";", "") for cell in cells] for name, cells in people().items()}
    csv = write(tmp_path / "people.csv", columns, "cp1252", ";")
    monkeypatch.setattr(files, "_LARGE_BYTES", 1000)
    notices: list[str] = []
    monkeypatch.setattr(files, "rank_zero_info", notices.append)
    read_file(csv, "cp1252", ";")
    assert notices[0].endswith(" people_parquet --encoding cp1252 --delimiter ';'")


@pytest.mark.parametrize("encoding", [None, "cp1252"])
def test_arrow_holds_no_python_object_of_a_small_table(tmp_path: Path, encoding: str | None) -> None:
    """Such an object aborted the program (exit code 134) if it ended while a thread of Arrow still had it."""
    path = tmp_path / "small.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pa.OSFile(str(path)) as file:
        source = CsvFile(path, encoding)._utf8(file)
        assert isinstance(source, pa.OSFile if encoding is None else pa.BufferReader)
        assert source.read() == path.read_bytes()


def test_an_empty_line_of_a_single_column_is_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "survey.csv").write_text("sex\nf\n\nm\n")
    (tmp_path / "people.csv").write_text("sex,age\nf,1\n\nm,2\n")
    assert read_file(tmp_path / "survey.csv").table.column("sex").to_pylist() == ["f", "", "m"]
    assert read_file(tmp_path / "people.csv").table.column("sex").to_pylist() == ["f", "m"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_packed_in_several_parts(tmp_path: Path, encoding: str) -> None:
    """As `cat` of two compressed files makes it, with letters cut apart between blocks."""
    content = ("town,age\n" + "Köln,3\n" * 5000).encode(encoding)
    path = tmp_path / "towns.csv.gz"
    path.write_bytes(gzip.compress(content[:1001]) + gzip.compress(content[1001:]))
    table = read_file(path, None if encoding == "utf-8" else encoding).table
    assert table.column("town").unique().to_pylist() == ["Köln"]
    assert table.num_rows == 5000
