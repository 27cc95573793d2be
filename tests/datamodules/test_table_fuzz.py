"""Tables that no one would write on purpose: each is trained on, or refused by a message."""

from __future__ import annotations

import gzip
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.errors import InputError

HEADER = "age,town,sex,hired\n"
GOOD = "".join(
    f"{20 + n % 40},{'xy'[n % 2]},{'fm'[n // 2 % 2]},{'no' if n % 3 else 'yes'}\n" for n in range(40)
)


def train(content: bytes, name: str = "people.csv", **options: Any) -> TableDataModule:
    """Read a file, and take one step on its first batch."""
    defaults: dict[str, Any] = {"target": "hired", "positive": "yes", "related": ["age"], "sensitive": "sex"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        data = TableDataModule(str(path), **defaults | {"seed": 0, "batch_size": 8} | options)
        data.setup("fit")
    model = FairRFModule(data.n_features, data.related_columns, num_groups=data.num_groups)
    batch = next(iter(data.train_dataloader()))
    loss = model.training_step(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert math.isfinite(loss.item())
    for part in data._parts.values():
        assert part["inputs"].isfinite().all()
        assert set(part["target"].tolist()) <= {0, 1}
    return data


def trains_or_explains(content: bytes, name: str = "people.csv", **options: Any) -> str:
    try:
        train(content, name, **options)
    except InputError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a sheet", "is an Excel workbook .* Save the sheet as CSV"),
        (b"\n\n", "is empty"),
        (b"<html>moved</html>", "a single line"),
        (HEADER.encode(), "but no rows"),
        (HEADER.strip().encode(), "a single line"),
        ((HEADER + "30,x,f,yes\n").encode(), "has 1 value"),
        ((HEADER + "30,x,f,yes\n31,y,m,no\n").encode(), "2 rows are too few"),
        ((HEADER + GOOD.replace("yes", "no")).encode(), "target: 'hired' has 1 value"),
        ((HEADER + GOOD + "30,x,f,maybe\n").encode(), r"has 3 value\(s\) \(maybe, no, yes\)"),
        ((HEADER + GOOD.replace("yes", "").replace("no", "")).encode(), "target: 'hired' has 0 value"),
        (("age,age,sex,hired\n" + GOOD).encode(), "more than one column 'age'"),
        (("age, age ,sex,hired\n" + GOOD).encode(), "more than one column 'age'"),
        ((HEADER + GOOD + "30,x\0,f,yes\n").encode(), "NUL character in row 42"),
        ((HEADER + GOOD).replace("town", "to\0wn").encode(), "NUL character in row 1:"),
        ((HEADER + GOOD).encode("utf-16-le"), "NUL character in row"),
        ((HEADER + GOOD).encode("utf-8-sig"), "trained"),
        ((HEADER + GOOD.replace("x", "Köln")).encode("cp1252"), "not encoded in utf-8.*cp1252"),
        ((HEADER + GOOD).encode("utf-16"), "for example utf-16"),
        ((HEADER + GOOD).replace("\n", "\r\n").encode(), "trained"),
        ((HEADER + GOOD).replace(",", ";").encode(), "separated by ';'. Then set the option delimiter"),
        ((HEADER + GOOD + "30,x,f\n").encode(), "Row #42: Expected 4 columns, got 3"),
        ((HEADER + GOOD + "30,x,f,no,more\n").encode(), "Expected 4 columns, got 5"),
        ((HEADER + GOOD + '30,"x,f,no\n').encode(), "trained|Expected 4 columns|CSV"),
        ((HEADER + GOOD + "inf,x,f,no\n").encode(), "'age' has 1 infinite values"),
        ((HEADER + GOOD + "1e999,x,f,no\n").encode(), "'age' has 1 infinite values"),
        ((HEADER + GOOD + "1e308,x,f,no\n" * 3).encode(), "numbers too large|trained"),
        ((HEADER + GOOD.replace("x", "").replace("y,", ",")).encode(), "trained"),
        (
            ("id," + HEADER + "".join(f"{n},{line}\n" for n, line in enumerate(GOOD.split()))).encode(),
            "trained",
        ),
        (
            ("," + HEADER + "".join(f"{n},{line}\n" for n, line in enumerate(GOOD.split()))).encode(),
            "trained",
        ),
        (b"PAR1 no Parquet after all", "damaged Parquet"),
        (gzip.compress((HEADER + GOOD).encode(), mtime=0)[:60], "damaged gzip"),
        (bytes(range(256)) * 9, "not encoded in utf-8"),
    ],
)
def test_odd_file(content: bytes, outcome: str) -> None:
    result = trains_or_explains(content)
    assert pd.Series([result]).str.contains(outcome).all(), result


def test_column_without_values_is_left_out_aloud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lightning.pytorch")
    content = (
        HEADER + "".join(f"{line.replace('x', '').replace('y,', ',')}\n" for line in GOOD.split())
    ).encode()
    assert train(content).feature_names == ["age"]
    assert "columns without a value are left out: town" in caplog.text
    assert "'town' has no value" in trains_or_explains(content, related=["town"])
    assert "missing: drop leaves no row" in trains_or_explains(content, missing="drop")


def test_related_column_may_be_constant() -> None:
    content = (HEADER + "".join(f"5,{line.partition(',')[2]}\n" for line in GOOD.split())).encode()
    assert train(content).encoder.scales == {"age": (5.0, 1.0)}


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1", "utf-16-le"])
def test_named_encoding(encoding: str) -> None:
    data = train((HEADER + GOOD.replace("x", "Köln")).encode(encoding), encoding=encoding)
    assert "town=Köln" in data.feature_names


def test_hundred_thousand_categories_are_folded() -> None:
    rows = 200_000
    frame = pd.DataFrame({"age": np.arange(rows) % 50, "code": [f"c{n // 2}" for n in range(rows)]})
    frame["hired"] = np.where(frame["age"] > 20, "yes", "no")
    options: dict[str, Any] = {"sensitive": None}
    assert "looks like free text" in trains_or_explains(frame.to_csv(index=False).encode(), **options)
    data = train(frame.to_csv(index=False).encode(), categorical=["code"], **options)
    assert data.feature_names == ["age", "code=(other)"]


CELLS = st.one_of(
    st.sampled_from(["", "NA", "nan", "?", "inf", "-1e308", "0", "1.0", "yes", "no", "true", "2020-01-01"]),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(codec="utf-8"), max_size=5),
)


@given(
    columns=st.lists(st.lists(CELLS, min_size=1, max_size=6), min_size=2, max_size=5),
    labels=st.lists(st.sampled_from(["yes", "no", "", "maybe"]), min_size=1, max_size=3),
    rows=st.integers(1, 60),
    missing=st.sampled_from(["indicator", "drop"]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:.*almost determines the sensitive attribute")
def test_random_cells(columns: list[list[str]], labels: list[str], rows: int, missing: str) -> None:
    frame = pd.DataFrame({f"c{n}": np.resize(cells, rows) for n, cells in enumerate(columns)})
    frame["hired"] = np.resize(labels, rows)
    options: dict[str, Any] = {"related": ["c0"], "sensitive": "c1" if len(columns) > 2 else None}
    trains_or_explains(frame.to_csv(index=False).encode(), missing=missing, **options)
    trains_or_explains(frame.to_csv(index=False).encode(), missing=missing, categorical=["c0"], **options)


@given(content=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes(content: bytes) -> None:
    trains_or_explains(content)
    trains_or_explains((HEADER + GOOD).encode() + content)
    trains_or_explains(b"PAR1" + content + b"PAR1")


@given(text=st.text(st.sampled_from('ab1,;"\n\r\t \0.-é'), max_size=80))
@settings(max_examples=150, deadline=None)
def test_random_text(text: str) -> None:
    trains_or_explains((HEADER + GOOD + text).encode())
    trains_or_explains((text + HEADER + GOOD).encode())


@given(
    values=st.lists(st.one_of(st.none(), st.floats(), st.integers(-(2**60), 2**60)), min_size=1, max_size=8),
    rows=st.integers(12, 60),
)
@settings(max_examples=80, deadline=None)
def test_random_numbers_in_parquet(values: list[Any], rows: int) -> None:
    numbers = pd.Series(values, dtype=object).astype("float64")
    frame = pd.DataFrame({"c": np.resize(numbers.to_numpy(), rows), "hired": np.resize([1, 0, 0], rows)})
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(f"{folder}/p.parquet")
        content = Path(f"{folder}/p.parquet").read_bytes()
    trains_or_explains(content, "p.parquet", related=["c"], sensitive=None, positive=1)


def test_rows_are_never_lost_silently(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lightning.pytorch")
    content = (HEADER + GOOD + "\n\n30,x,,no\n,,,no\n,,,\n").encode()
    data = train(content)
    assert sum(data.split_sizes.values()) == 42
    assert "1 rows are left out, as they have no label" in caplog.text
    assert torch.cat([part["groups"] for part in data._parts.values()]).eq(-1).sum() == 2
