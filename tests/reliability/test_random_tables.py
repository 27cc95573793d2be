"""Random tables through a fit of one epoch: each is trained on, or refused by a clear error.

``tests/datamodules/test_table_fuzz.py`` feeds odd files to the data module; here whole commands run.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reliability.outcome import SHORT, WHOLE_COMMANDS, outcome

Array = np.ndarray[Any, Any]
KINDS = (
    "integer",
    "number",
    "large",
    "constant",
    "boolean",
    "date",
    "word",
    "text",
    "unique",
    "mixed",
    "empty",
)
NAMES = st.one_of(
    st.sampled_from(
        ["age", "sex", "zip code", "a=b", "a,b", 'say "x"', "null", "1", "true", "Größe", "x.y", "[a]"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=12),
)
FORMATS = ("csv", "parquet", "directory")


class Table(NamedTuple):
    """A description of a table, small enough for hypothesis to shrink."""

    rows: int
    columns: dict[str, tuple[str, float]]  # kind and share of missing values
    labels: tuple[Any, ...]
    options: tuple[str, ...]
    related: int
    sensitive: int | None
    file: str
    seed: int


def _values(kind: str, rows: int, rng: np.random.Generator) -> list[Any]:
    words = ["red", "blue", "", "N/A", " green ", "grün"]
    values: dict[str, Any] = {
        "integer": lambda: rng.integers(-50, 50, rows),
        "number": lambda: rng.normal(0, 10.0 ** rng.integers(-8, 9), rows),
        "large": lambda: rng.choice([1e308, -1e308, np.inf, 1e-320, 2.0**63], rows),
        "constant": lambda: np.full(rows, 7),
        "boolean": lambda: rng.random(rows) < 0.5,
        "date": lambda: pd.Timestamp("2020-02-29") + pd.to_timedelta(rng.integers(0, 999, rows), unit="D"),
        "word": lambda: rng.choice(words, rows),
        "text": lambda: [f"sentence {number} of many" for number in rng.integers(0, 10**9, rows)],
        "unique": lambda: np.arange(rows),
        "mixed": lambda: [rng.choice(["3", "4.5", "x", "", "1e5", "nan"]) for _ in range(rows)],
        "empty": lambda: np.full(rows, np.nan),
    }
    return list(values[kind]())


def _frame(table: Table) -> pd.DataFrame:
    rng = np.random.default_rng(table.seed)
    columns = {}
    for name, (kind, missing) in table.columns.items():
        absent = rng.random(table.rows) < missing
        values = pd.Series(_values(kind, table.rows, rng))
        columns[name] = values.mask(absent) if missing else values
    columns["label"] = pd.Series([table.labels[n] for n in rng.integers(0, len(table.labels), table.rows)])
    return pd.DataFrame(columns)


def _write(frame: pd.DataFrame, folder: Path, kind: str) -> str:
    if kind == "csv":
        frame.to_csv(folder / "table.csv", index=False)
        return "table.csv"
    if kind == "parquet":
        frame.to_parquet(folder / "table.parquet")
        return "table.parquet"
    (folder / "table").mkdir()
    for number in range(2):
        frame.iloc[number::2].to_parquet(folder / "table" / f"{number}.parquet")
    return "table"


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    missing = st.sampled_from([0.0, 0.0, 0.1, 0.9])
    columns = {name: (draw(st.sampled_from(KINDS)), draw(missing)) for name in names if name != "label"}
    columns = columns or {"age": ("number", 0.0)}
    options = st.sampled_from(
        ["--data.missing=drop", "--data.batch_size=7", "--data.min_count=1", "--model.eta=5"]
    )
    return Table(
        rows=draw(st.one_of(st.integers(1, 30), st.integers(1, 2000))),
        columns=columns,
        labels=draw(
            st.sampled_from(
                [("yes", "no"), (0, 1), (1.0, 2.0), ("no",), ("a", "b", "c"), ("yes", "no", None)]
            )
        ),
        options=tuple(draw(st.lists(options, max_size=2, unique=True))),
        related=draw(st.integers(0, len(columns) - 1)),
        sensitive=draw(st.one_of(st.none(), st.integers(0, len(columns) - 1))),
        file=draw(st.sampled_from(FORMATS)),
        seed=draw(st.integers(0, 99)),
    )


def _fit(table: Table) -> None:
    names = list(table.columns)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = [f"--data.path={_write(_frame(table), folder, table.file)}", "--data.target=label"]
        options += [f"--data.related={json.dumps([names[table.related]], ensure_ascii=False)}"]
        if table.sensitive is not None:
            options += [f"--data.sensitive={names[table.sensitive]}"]
        if "yes" in table.labels:
            options += ["--data.positive=yes"]
        message = outcome(["fit", "--data=table", *options, *SHORT, *table.options], folder)
        assert message or list(folder.glob("lightning_logs/version_0/checkpoints/*.ckpt")), (
            "nothing was saved"
        )


@given(table=tables())
@settings(max_examples=12, derandomize=True, **WHOLE_COMMANDS)
def test_random_table_is_trained_on_or_refused(table: Table) -> None:
    _fit(table)


@pytest.mark.slow
@given(table=tables())
@settings(max_examples=400, **WHOLE_COMMANDS)
def test_many_random_tables_are_trained_on_or_refused(table: Table) -> None:
    _fit(table)
