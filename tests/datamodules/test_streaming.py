from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning import Callback, Trainer

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import StreamedBatches, TableDataModule, parquet
from fairrf_lightning.datamodules.loader import EpochBatches
from fairrf_lightning.datamodules.parquet import ParquetDirectory, parts_of_rows, uniform_of_rows
from fairrf_lightning.datamodules.streaming import prefetched
from fairrf_lightning.errors import InputError
from tests.ranks import run_on_ranks
from tests.trainers import quiet_trainer

ROWS = 1000


def people(rows: int = ROWS) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    sex = draw.choice(["f", "m"], rows)
    age = draw.integers(18, 70, rows).astype(float)
    frame = pd.DataFrame(
        {
            "age": np.where(draw.random(rows) < 0.1, np.nan, age),
            "number": np.arange(rows),
            "town": draw.choice(np.array(["x", "y", "z", None], dtype=object), rows),
            "sex": sex,
            "hired": age + 10 * (sex == "m") > 50,
        }
    )
    frame.loc[::7, "sex"] = None
    return frame


def write(folder: Path, frame: pd.DataFrame, files: int = 3, row_group: int = 70) -> str:
    (folder / "people").mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(
            folder / "people" / f"{number}.parquet", row_group_size=row_group, index=False
        )
    return str(folder / "people")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("streamed"), people())


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROWS_AT_ONCE", 32)


def table(path: str, **options: Any) -> TableDataModule:
    defaults: dict[str, Any] = {"target": "hired", "related": ["age"], "sensitive": "sex", "seed": 0}
    data = TableDataModule(path, **defaults | options)
    data.setup("fit")
    return data


def loader(
    data: TableDataModule, part: str = "train", batch_size: int = 64, **options: Any
) -> StreamedBatches:
    stream = data._stream
    assert stream is not None
    keys = ("inputs", "target", "groups", "row")
    return StreamedBatches(stream, part, keys, batch_size, **options)


def rows_of(batches: EpochBatches) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


def part_rows(data: TableDataModule, part: int) -> list[int]:
    groups = ParquetDirectory(data.path).row_groups
    found = [np.flatnonzero(parts_of_rows(g, 0, (0.5, 0.2, 0.3)) == part) + g.offset for g in groups]
    return [int(row) for row in np.concatenate(found)]


def test_split_follows_from_file_and_row_alone(tmp_path: Path) -> None:
    fine = ParquetDirectory(Path(write(tmp_path, people(), row_group=10)))
    first = np.concatenate([uniform_of_rows(3, g) for g in fine.row_groups if g.file == "0.parquet"])
    people().to_parquet(tmp_path / "people" / "00-new.parquet")
    coarse = ParquetDirectory(Path(write(tmp_path, people(), row_group=1000)))
    again = np.concatenate([uniform_of_rows(3, g) for g in coarse.row_groups if g.file == "0.parquet"])
    assert first.tolist() == again.tolist()
    assert 0 <= first.min() < first.max() < 1
    assert abs(first.mean() - 0.5) < 0.05
    assert uniform_of_rows(4, coarse.row_groups[1]).tolist() != again.tolist()


def test_encoding_is_learned_from_the_training_rows(path: str) -> None:
    data, frame = table(path), people()
    assert data.feature_names == [
        "age",
        "number",
        "age=(missing)",
        "town=x",
        "town=y",
        "town=z",
        "town=(missing)",
    ]
    train = frame.iloc[part_rows(data, 0)]
    mean, std = data.encoder.scales["age"]
    assert mean == pytest.approx(train["age"].mean())
    assert std == pytest.approx(train["age"].std(ddof=0))
    assert data.encoder.fills["age"] == train["age"].median()
    assert data.group_names == ["f", "m"]
    assert sum(data.split_sizes.values()) == ROWS
    assert str(data).startswith("TableDataModule(train ")


def test_rows_carry_their_values(path: str) -> None:
    data, frame = table(path), people()
    for batch in loader(data, shuffle=True, buffer_size=100):
        rows = frame.iloc[batch["row"].numpy()]
        expected = data.encoder.transform(rows)
        torch.testing.assert_close(batch["inputs"], expected)
        assert batch["target"].tolist() == rows["hired"].tolist()
        codes = rows["sex"].map({"f": 0, "m": 1}).fillna(-1)
        assert batch["groups"].tolist() == codes.tolist()


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize(
    ("world_size", "num_workers", "batch_size"),
    [(1, 0, 1), (1, 0, 37), (2, 0, 1), (2, 0, 37), (2, 0, 10_000), (3, 0, 37), (2, 2, 37)],
)
def test_each_row_comes_once(
    path: str, part: str, world_size: int, num_workers: int, batch_size: int
) -> None:
    data = table(path)
    options = {"world_size": world_size, "num_workers": num_workers, "shuffle": part == "train"}
    ranks = [
        loader(data, part, batch_size, rank=rank, buffer_size=90, **options) for rank in range(world_size)
    ]
    batches = [rows_of(rank) for rank in ranks]
    seen = [row for rank in batches for batch in rank for row in batch]
    assert sorted(seen) == part_rows(data, ["train", "val"].index(part))
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    sizes = [len(batch) for rank in batches for batch in rank]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= batch_size + (batch_size == 1)
    if part == "train":
        assert min(sizes) > 0
    elif not num_workers:
        assert seen == sorted(seen)


def test_order_follows_from_seed_and_epoch(path: str) -> None:
    batches = loader(table(path), shuffle=True, buffer_size=100, seed=1)
    first = rows_of(batches)
    assert rows_of(batches) == first
    batches.set_epoch(1)
    second = rows_of(batches)
    assert second != first
    assert sorted(chain.from_iterable(second)) == sorted(chain.from_iterable(first))
    assert rows_of(loader(table(path), shuffle=True, buffer_size=100, seed=2)) != first


def test_shuffling_mixes_row_groups(path: str) -> None:
    first = rows_of(loader(table(path), shuffle=True, buffer_size=100))[0]
    groups = ParquetDirectory(Path(path)).row_groups
    starts = [group.offset for group in groups]
    assert len(set(np.searchsorted(starts, first, side="right"))) >= 3
    assert first != sorted(first)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_epoch_goes_on_exactly(path: str, num_workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "buffer_size": 100, "num_workers": num_workers}
    whole = loader(table(path), **options)
    whole.set_epoch(2)
    expected = rows_of(whole)
    begun = loader(table(path), **options)
    begun.set_epoch(2)
    batches = iter(begun)
    for _ in range(3):
        next(batches)
    resumed = loader(table(path), **options)
    resumed.load_state_dict(begun.state_dict())
    resumed.set_epoch(2)
    assert rows_of(resumed) == expected[3:]
    del batches


def test_rank_without_rows_yields_an_empty_batch(path: str) -> None:
    data = table(path)
    assert data._stream is not None
    counts = [[1, 1, 1]] + [[0, 0, 0]] * (len(data._stream.counts) - 1)
    rows = replace(data._stream, counts=counts)
    (batch,) = StreamedBatches(rows, "val", ("inputs", "groups"), 8, rank=0, world_size=2)
    assert batch["inputs"].shape == (0, data.n_features)
    assert batch["groups"].shape == (0,)
    with pytest.raises(InputError, match="too few for 2 readers"):
        StreamedBatches(rows, "train", ("inputs",), 8, shuffle=True, world_size=2)


def test_dropped_rows_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lightning.pytorch")
    frame = people().astype({"hired": object})
    frame.loc[:9, "hired"] = None
    folder = write(tmp_path, frame)
    data = table(folder, missing="drop")
    usable = frame.drop(columns="sex").notna().all(axis=1)
    assert sum(data.split_sizes.values()) == usable.sum()
    assert f"{(~usable).sum()} rows are left out, as they have no label or a missing value" in caplog.text
    seen = chain.from_iterable(rows_of(loader(data, shuffle=True)))
    assert sorted(seen) == [row for row in part_rows(data, 0) if usable[row]]


def trainer(folder: Path, **options: Any) -> Trainer:
    return quiet_trainer(default_root_dir=folder, num_sanity_val_steps=0, log_every_n_steps=1, **options)


@pytest.fixture(scope="module")
def checkpoint(path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    fit = trainer(folder, max_epochs=1)
    fit.fit(FairRFModule(eta=0.3), datamodule=table(path))
    fit.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def test_checkpoint_spares_the_pass(
    path: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairrf_lightning.datamodules.streaming.scan", None)
    data = TableDataModule(path)
    test = trainer(tmp_path)
    model = FairRFModule.load_from_checkpoint(checkpoint)
    test.test(model, datamodule=data, ckpt_path=checkpoint, verbose=False)
    assert "test_dp_gap" in test.callback_metrics
    assert data.state_dict() == table_state(checkpoint)


def table_state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)["TableDataModule"]
    return state


def test_other_files_are_counted_anew(checkpoint: Path, tmp_path: Path) -> None:
    data = TableDataModule(write(tmp_path, people(300)))
    model = FairRFModule.load_from_checkpoint(checkpoint)
    with pytest.warns(UserWarning, match="not the table that the checkpoint was trained on"):
        trainer(tmp_path).test(model, datamodule=data, ckpt_path=checkpoint, verbose=False)
    assert sum(data.split_sizes.values()) == 300


@pytest.mark.parametrize("missing", ["indicator", "drop"])
def test_prediction_of_a_directory_equals_that_of_a_file(path: str, tmp_path: Path, missing: str) -> None:
    fit, data = trainer(tmp_path, max_epochs=1), table(path, missing=missing)
    fit.fit(FairRFModule(eta=0.3), datamodule=data)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    new = people().drop(columns=["hired", "sex"])
    new.to_csv(tmp_path / "new.csv", index=False)
    found = []
    for name in (write(tmp_path, new), str(tmp_path / "new.csv")):
        model = FairRFModule.load_from_checkpoint(tmp_path / "last.ckpt")
        batches: Any = trainer(tmp_path).predict(
            model, datamodule=TableDataModule(name), ckpt_path=tmp_path / "last.ckpt"
        )
        found.append({key: torch.cat([batch[key] for batch in batches]) for key in batches[0]})
    expected = np.flatnonzero(new.notna().all(axis=1)) if missing == "drop" else np.arange(ROWS)
    assert found[0]["row"].tolist() == expected.tolist()
    assert torch.equal(found[0]["row"], found[1]["row"])
    torch.testing.assert_close(found[0]["probability"], found[1]["probability"])


def test_nested_files_are_found_and_hidden_ones_are_not(tmp_path: Path) -> None:
    folder = Path(write(tmp_path, people()))
    (folder / "more").mkdir()
    people(10).to_parquet(folder / "more" / "a.parquet")
    people(10).iloc[:0].to_parquet(folder / "more" / "empty.parquet")
    (folder / "_tmp").mkdir()
    people(10).to_parquet(folder / "_tmp" / "b.parquet")
    (folder / ".c.parquet").write_text("no")
    assert ParquetDirectory(folder).num_rows == ROWS + 10


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            lambda folder: [file.unlink() for file in folder.iterdir()],
            "holds no file whose name ends in .parquet",
        ),
        (lambda folder: (folder / "0.parquet").write_bytes(b"PAR1 no PAR1"), "0.parquet cannot be read"),
        (
            lambda folder: people().drop(columns="town").to_parquet(folder / "1.parquet"),
            "1.parquet: there is no column 'town'",
        ),
        (
            lambda folder: people().assign(age="old").to_parquet(folder / "1.parquet"),
            "'age' has 32 values that are no numbers",
        ),
        (
            lambda folder: [people().iloc[:0].to_parquet(file) for file in folder.iterdir()],
            "have no rows",
        ),
        (
            lambda folder: [people(2).iloc[int(file.stem) :].to_parquet(file) for file in folder.iterdir()],
            "too few rows for a split",
        ),
        (
            lambda folder: people().assign(hired=2).to_parquet(folder / "1.parquet"),
            r"'hired' has 3 value\(s\)",
        ),
        (
            lambda folder: [people().assign(born=pd.Timestamp(0)).to_parquet(f) for f in folder.iterdir()],
            "'born' holds dates",
        ),
        (
            lambda folder: [people().assign(born="2001-02-03").to_parquet(f) for f in folder.iterdir()],
            "'born' holds dates",
        ),
        (
            lambda folder: [
                people().assign(name=[f"{n}" for n in range(ROWS)]).to_parquet(f) for f in folder.iterdir()
            ],
            "looks like free text",
        ),
        (
            lambda folder: [people().assign(sex="f").to_parquet(f) for f in folder.iterdir()],
            "sensitive: 'sex' has one value only",
        ),
    ],
)
def test_unusable_directory_is_refused(tmp_path: Path, break_it: Any, message: str) -> None:
    folder = Path(write(tmp_path, people()))
    break_it(folder)
    with pytest.raises(InputError, match=message):
        table(str(folder))


def test_copy_of_s_is_refused(tmp_path: Path) -> None:
    frame = people().assign(gender=lambda table: table["sex"].map({"f": "woman", "m": "man"}))
    with pytest.raises(InputError, match="'gender' is the sensitive attribute 'sex' in other words"):
        table(write(tmp_path, frame))


def test_groups_can_be_chosen(tmp_path: Path, checkpoint: Path) -> None:
    frame = people()
    frame.loc[::5, "sex"] = "x"
    folder = write(tmp_path, frame)
    assert table(folder).group_names == ["f", "m", "x"]
    data = table(folder, groups=["f", "x"])
    seen = {name for batch in loader(data, "val") for name in batch["groups"].tolist()}
    assert seen == {-1, 0, 1}
    with pytest.raises(InputError, match="groups: there is no 'y' in 'sex'"):
        table(folder, groups=["f", "y"])
    restored = TableDataModule(folder, groups=["m", "x"])
    with pytest.warns(UserWarning, match="not the table"):
        restored.load_state_dict(table_state(checkpoint))
    assert restored.group_names == ["m", "x"]


def test_identifiers_end_the_pass_early(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.datamodules.encoding._MAX_DISTINCT", 2)
    with pytest.raises(InputError, match="'town' has more than 2 distinct values"):
        table(path)


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    data = table(write(tmp_path, people(), files=1, row_group=500))
    batches = iter(loader(data, batch_size=10, shuffle=True, buffer_size=20))
    next(batches)
    people().sample(frac=1, random_state=0).to_parquet(
        tmp_path / "people" / "0.parquet", row_group_size=500, index=False
    )
    with pytest.raises(InputError, match=r"0\.parquet has changed since the run began"):
        list(batches)


def test_lost_rows_are_noticed(path: str) -> None:
    data = table(path)
    assert data._stream is not None
    counts = [[count[0] + 1, *count[1:]] for count in data._stream.counts]
    with pytest.raises(InputError, match="lost rows"):
        list(StreamedBatches(replace(data._stream, counts=counts), "train", ("inputs",), 64))


def test_error_of_the_reading_thread_is_raised() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise InputError("broken")

    items = prefetched(broken())
    assert next(items) == 1
    with pytest.raises(InputError, match="broken"):
        next(items)


def test_reading_thread_ends_with_the_iteration() -> None:
    before = threading.active_count()
    items: Any = prefetched(iter(range(1000)))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before


class WithRowNumbers(TableDataModule):
    def train_dataloader(self) -> EpochBatches:
        return self._loader("train", ("inputs", "target", "row"), self.batch_size, shuffle=True)


class Watch(Callback):
    def __init__(self) -> None:
        self.rows: list[tuple[int, list[int]]] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.rows.append((trainer.current_epoch, args[2]["row"].tolist()))


def fit_on(ranks: int, path: str, folder: Path) -> None:
    """Train on ``ranks`` processes and write what each of them has seen."""
    torch.manual_seed(0)
    watch = Watch()
    trainer = quiet_trainer(
        max_epochs=2,
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[watch],
        log_every_n_steps=1,
    )
    options: dict[str, Any] = {"target": "hired", "related": ["age"], "sensitive": "sex", "seed": 0}
    data = WithRowNumbers(path, batch_size=48 // ranks, **options)
    trainer.fit(FairRFModule(eta=0.0, lr=1e-12), datamodule=data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name[:4] == "val_"}
    found = json.dumps({"rows": watch.rows, "metrics": metrics})
    (folder / f"{ranks}.{trainer.global_rank}").write_text(found)


def test_two_processes_share_the_rows(path: str, tmp_path: Path) -> None:
    fit_on(1, path, tmp_path)
    run_on_ranks(lambda ranks: fit_on(ranks, path, tmp_path), tmp_path)
    found: dict[int, list[dict[str, Any]]] = {
        ranks: [json.loads((tmp_path / f"{ranks}.{rank}").read_text()) for rank in range(ranks)]
        for ranks in (1, 2)
    }
    expected = part_rows(table(path), 0)
    for epoch in (0, 1):
        for records in found.values():
            batches = [[batch for at, batch in record["rows"] if at == epoch] for record in records]
            assert sorted(row for rank in batches for batch in rank for row in batch) == expected
            assert len({len(rank) for rank in batches}) == 1
    one, two = found[1][0]["metrics"], found[2][0]["metrics"]
    assert two == found[2][1]["metrics"]
    assert "val_dp_gap" in one
    for name, value in one.items():
        assert two[name] == pytest.approx(value, abs=1e-5), name
