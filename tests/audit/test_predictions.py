"""Files of predictions: batches, and errors that name the row and the column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fairrf_lightning.audit import read_predictions
from fairrf_lightning.datamodules import score_files
from fairrf_lightning.datamodules.score_files import read_batches
from fairrf_lightning.errors import InputError
from tests.audit.rows import write_predictions


@pytest.mark.usefixtures("cli")
def test_many_batches_are_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write_predictions()
    whole = read_predictions(Path("p.parquet"), ("race", "sex"))
    monkeypatch.setattr("fairrf_lightning.datamodules.score_files._BATCH_ROWS", 100)
    parts = read_predictions(Path("p.parquet"), ("race", "sex"))
    order = [parts.names.index(name) for name in whole.names]
    for mine, theirs in zip(parts.counts.fields(), whole.counts.fields(), strict=True):
        torch.testing.assert_close(mine[..., order, :], theirs)


@pytest.mark.usefixtures("cli")
def test_the_row_of_a_wrong_value_counts_the_batches_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.datamodules.score_files._BATCH_ROWS", 100)
    rows = write_predictions()
    rows.loc[1233, "target"] = 3
    rows.to_parquet("p.parquet")
    with pytest.raises(InputError, match="'target' has the value 3 in data row 1,234: expected 0 or 1"):
        read_predictions(Path("p.parquet"), ["sex"])


@pytest.mark.usefixtures("cli")
def test_decisions_may_be_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.datamodules.score_files._BATCH_ROWS", 100)
    rows = write_predictions()
    rows["decision"] = (rows["prob"] >= 0.5).astype(int)
    rows["hired"] = np.where(rows["decision"] == 1, "Yes", "No")
    for column in ("decision", "hired"):
        rows[["sex", "target", column]].to_parquet(f"{column}.parquet")
    numbers = read_predictions(Path("decision.parquet"), ["sex"], decision="decision", positive="1")
    words = read_predictions(Path("hired.parquet"), ["sex"], decision="hired", positive="Yes")
    for mine, theirs in zip(words.counts.fields(), numbers.counts.fields(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("cli")
def test_the_positive_value_may_be_true_as_pandas_writes_it() -> None:
    rows = write_predictions()
    rows.assign(hired=rows["prob"] >= 0.5)[["sex", "target", "hired"]].to_csv("hired.csv", index=False)
    found = read_predictions(Path("hired.csv"), ["sex"], decision="hired", positive="True")
    assert int(found.counts.positive.sum()) == int((rows["prob"] >= 0.5).sum())


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("values", "positive", "message"),
    [
        (["yes", "no"], None, "'yes' in data row 1: expected 0 or 1 .* the positive one by --positive"),
        (["yes", "no", "maybe"], "yes", "'maybe' in data row 3: expected 'yes' or 'no' in every row"),
        (["no", "no"], "yes", "--positive yes: no row has this value; 'hired' has 'no'"),
        (["0", "1"], "yes", "--positive yes: no row has this value; columns of 0 and 1 are read without it"),
        (["0", "2"], "yes", "the value '2' in data row 2: expected 0 or 1"),
        (["", "no"], "yes", "an empty cell in data row 1: expected 0 or 1"),
    ],
)
def test_words_that_are_no_decision_are_refused(
    values: list[str], positive: str | None, message: str
) -> None:
    pq.write_table(pa.table({"hired": [v or None for v in values], "sex": ["f"] * len(values)}), "p.parquet")
    with pytest.raises(InputError, match=message):
        read_predictions(Path("p.parquet"), ["sex"], decision="hired", positive=positive)


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
            read_predictions(Path(name), ["race"])
    write_predictions().rename(columns={"prob": "score"}).to_csv("p.csv", index=False)
    with pytest.raises(
        InputError, match=r"no column 'prob' or 'probability': name .* by --prob, or .* by --decision"
    ):
        read_predictions(Path("p.csv"), ["race"])


def test_a_parquet_file_is_never_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = tmp_path / "scores.parquet", 50_000
    values = np.random.default_rng(0).random(20 * rows)
    pq.write_table(pa.table({"prob": values}), path, row_group_size=rows)
    monkeypatch.setattr(score_files, "_BATCH_ROWS", rows)
    start = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - start for _ in read_batches(path)]
    assert len(held) == 20
    assert max(held) < path.stat().st_size / 4
