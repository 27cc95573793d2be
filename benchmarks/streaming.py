"""A table larger than memory: peak memory and speed of streaming, and each row exactly once on two ranks.

Writes a directory of Parquet files (by default 20 million rows x 12 columns, as pyarrow writes them), then
trains FairRF for one epoch, each time in a process of its own: in memory and streamed in turn on a part that
fits, several times (the fastest round counts, as other work on the machine only slows down), then streamed
from the whole directory, and the same on two ranks.

``--scan`` compares the reader, without a model, with a plain scan of the same files by pyarrow.
``--memory 1 10 100`` trains on tables of 1, 10 and 100 million narrow rows, within ``--limit-mb``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.loader import EpochBatches
from fairrf_lightning.datamodules.parquet import ParquetDirectory, parts_of_rows

ROWS_PER_FILE = 1_000_000


def people(rows: int, seed: int) -> pa.Table:
    """Draw people: six numbers, four categories, S and a label that depends on some of them."""
    draw = np.random.default_rng(seed)
    sex = draw.integers(0, 2, rows)
    numbers = {f"number{n}": draw.standard_normal(rows, dtype=np.float32) for n in range(5)}
    age = draw.normal(40 + 3 * sex, 12, rows).astype(np.float32)
    logit = 0.05 * (age - 40) + numbers["number0"] + 0.5 * sex
    texts = {
        f"text{n}": pa.DictionaryArray.from_arrays(
            draw.integers(0, size, rows, dtype=np.int32), [f"value{value}" for value in range(size)]
        ).cast(pa.string())
        for n, size in enumerate((3, 8, 15, 30))
    }
    label = draw.random(rows) < 1 / (1 + np.exp(-logit))
    return pa.table({"age": age, **numbers, **texts, "sex": np.array(["f", "m"])[sex], "hired": label})


def write(folder: Path, rows: int, columns: list[str] | None = None) -> None:
    """Write the files, with all columns or some of them."""
    (folder / "all").mkdir()
    for number, first in enumerate(range(0, rows, ROWS_PER_FILE)):
        table = people(min(ROWS_PER_FILE, rows - first), seed=number)
        pq.write_table(table.select(columns or table.column_names), folder / "all" / f"{number:05}.parquet")


class Rows(TableDataModule):
    """The table, with the row numbers in its training batches."""

    def train_dataloader(self) -> EpochBatches:
        return self._loader("train", ("inputs", "target", "row"), self.batch_size, shuffle=True)


class Watch(Callback):
    """Times the training batches, and counts how often each row is seen."""

    def __init__(self, num_rows: int) -> None:
        self.seen = np.zeros(num_rows, dtype=np.uint8)
        self.start = self.end = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, pl_module, outputs, batch_idx
        np.add.at(self.seen, batch["row"].numpy(), 1)
        self.end = time.perf_counter()


def train(path: str, ranks: int, batch_size: int, result: Path) -> None:
    """Train one epoch and write down time, memory and the rows seen by this rank."""
    warnings.filterwarnings("ignore")
    begun = time.perf_counter()
    data = Rows(
        path, target="hired", related=["age", "text1"], sensitive="sex", batch_size=batch_size, seed=0
    )
    files = ParquetDirectory(Path(path)) if Path(path).is_dir() else None
    watch = Watch(files.num_rows if files else pq.read_metadata(path).num_rows)
    trainer = Trainer(
        max_epochs=1,
        devices=ranks,
        accelerator="cpu",
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[watch],
    )
    trainer.fit(FairRFModule(eta=0.3), datamodule=data)
    rank = trainer.global_rank
    np.save(result.with_suffix(f".{rank}.npy"), watch.seen)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    record = {
        "rows": int(watch.seen.sum(dtype=np.int64)),
        "seconds": watch.end - watch.start,
        "setup": watch.start - begun,
        "whole": time.perf_counter() - begun,
        "peak_mb": peak,
    }
    result.with_suffix(f".{rank}.json").write_text(json.dumps(record), encoding="utf-8")


def measure(path: Path, ranks: int, batch_size: int, folder: Path) -> tuple[list[dict[str, float]], Any]:
    """Train in processes of their own; return the record of each rank and how often rows were seen."""
    result = folder / "result"
    command = [sys.executable, __file__, "--train", str(path), "--ranks", str(ranks)]
    command += ["--batch-size", str(batch_size), "--result", str(result)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})  # noqa: S603
    records = [json.loads(result.with_suffix(f".{r}.json").read_text("utf-8")) for r in range(ranks)]
    return records, sum(np.load(result.with_suffix(f".{r}.npy")) for r in range(ranks))


def training_rows(path: Path) -> Any:
    """Return which rows of the directory are training rows."""
    groups = ParquetDirectory(path).row_groups
    return np.concatenate([parts_of_rows(group, 0, (0.5, 0.2, 0.3)) == 0 for group in groups])


def write_part(folder: Path, rows: int) -> None:
    """Make the part that fits: the first files as a directory, and joined in one file."""
    files = sorted(link_part(folder, "part", rows).iterdir())
    pq.write_table(pa.concat_tables([pq.read_table(file) for file in files]), folder / "part.parquet")


def link_part(folder: Path, name: str, rows: int) -> Path:
    """Make a directory of the first files."""
    (folder / name).mkdir()
    for file in sorted((folder / "all").iterdir())[: max(1, rows // ROWS_PER_FILE)]:
        (folder / name / file.name).symlink_to(file)
    return folder / name


def train_limited(path: str, limit_mb: int) -> None:
    """Train one epoch within a hard limit of memory, and print rows and peak memory."""
    warnings.filterwarnings("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (limit_mb << 20, limit_mb << 20))
    begun = time.perf_counter()
    data = TableDataModule(
        path, target="hired", related=["age"], sensitive="sex", batch_size=8192, eval_batch_size=65536, seed=0
    )
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(FairRFModule(eta=0.3), datamodule=data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(
        f"{sum(data.split_sizes.values()):,} rows, {trainer.global_step:,} steps, "
        f"{time.perf_counter() - begun:,.0f} s: peak {peak:,.0f} MB within a limit of {limit_mb:,} MB",
        flush=True,
    )


def memory(folder: Path, millions: list[int], limit_mb: int) -> None:
    """Train on tables of different lengths, each in a process with the same limit."""
    write(folder, max(millions) * ROWS_PER_FILE, ["age", "number0", "text1", "sex", "hired"])
    for million in millions:
        path = link_part(folder, f"{million}", million * ROWS_PER_FILE)
        command = [sys.executable, __file__, "--train", str(path), "--limit-mb", str(limit_mb)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})  # noqa: S603


def plain_scan(path: Path) -> int:
    """Read all rows by pyarrow as it is, with its threads, and return their number."""
    return sum(batch.num_rows for batch in arrow_dataset.dataset(path).to_batches())


def scan(folder: Path, rows: int, rounds: int) -> None:
    """Read an epoch of training batches and scan the same files in turn; print rows per second."""
    write(folder, rows)
    path = folder / "all"
    data = TableDataModule(
        str(path), target="hired", related=["age"], sensitive="sex", batch_size=512, seed=0
    )
    data.setup("fit")

    def epoch() -> int:
        assert sum(len(batch["inputs"]) for batch in data.train_dataloader()) == data.split_sizes["train"]  # noqa: S101
        return rows  # an epoch reads all rows to find its own

    found: dict[str, list[tuple[float, float]]] = {"plain scan": [], "training batches": []}
    for _ in range(rounds):
        ways: list[Callable[[], int]] = [lambda: plain_scan(path), epoch]
        for name, read in zip(found, ways, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            number = read()
            found[name].append((number / (time.perf_counter() - wall), number / (time.process_time() - cpu)))
    medians = {name: np.median(speeds, axis=0) for name, speeds in found.items()}
    for name, (wall, cpu) in medians.items():
        print(f"{name}: {wall:,.0f} rows/s, {cpu:,.0f} rows per CPU second (medians of {rounds})")
    ratio = medians["training batches"] / medians["plain scan"]
    print(f"ratio: {ratio[0]:.2f} by wall time, {ratio[1]:.2f} by CPU time")


def speed(record: dict[str, float]) -> float:
    """Return training rows a second."""
    return record["rows"] / record["seconds"]


def report(folder: Path, batch_size: int, rounds: int) -> None:
    """Measure and print."""
    table = Table(title=f"One epoch of FairRF, batch size {batch_size}")
    for column in ("", "training rows", "rows/s", "set-up s", "epoch s", "peak MB", "each row once"):
        table.add_column(column, justify="right")
    runs = [("in memory, the part", folder / "part.parquet", 1), ("streamed, the part", folder / "part", 1)]
    runs = runs * rounds + [
        ("streamed, all", folder / "all", 1),
        ("streamed, all, 2 ranks", folder / "all", 2),
    ]
    fastest: dict[str, float] = {}
    for label, path, ranks in runs:
        records, seen = measure(path, ranks, batch_size, folder)
        once = "-" if path.suffix else str(bool((seen == training_rows(path)).all()))
        for record in records:
            fastest[label] = max(fastest.get(label, 0), speed(record))
            cells = (record["setup"], record["seconds"], record["peak_mb"])
            shown = (f"{record['rows']:,}", f"{speed(record):,.0f}", *(f"{cell:,.1f}" for cell in cells))
            table.add_row(label, *shown, once)
    console = Console(width=130)
    console.print(table)
    for label in ("streamed, the part", "streamed, all"):
        ratio = fastest[label] / fastest["in memory, the part"]
        console.print(f"{label}: {ratio:.0%} of the rows/s in memory")


def main() -> None:
    """Write the files and measure, or train in one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--part", type=int, default=4_000_000, help="rows that are also held in memory")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure the part")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--scan", action="store_true", help="compare with a plain scan of pyarrow")
    parser.add_argument("--memory", type=int, nargs="+", help="million rows of each table")
    parser.add_argument("--limit-mb", type=int, help="hard limit of memory (RLIMIT_DATA)")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train and args.limit_mb:
        train_limited(args.train, args.limit_mb)
        return
    if args.train:
        train(args.train, args.ranks, args.batch_size, args.result)
        return
    with tempfile.TemporaryDirectory() as name:
        if args.memory:
            memory(Path(name), args.memory, args.limit_mb or 2000)
            return
        if args.scan:
            scan(Path(name), args.rows, args.rounds)
            return
        write(Path(name), args.rows)
        write_part(Path(name), args.part)
        report(Path(name), args.batch_size, args.rounds)


if __name__ == "__main__":
    main()
