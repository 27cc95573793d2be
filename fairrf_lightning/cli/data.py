"""Commands on data: ``to_parquet``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from fairrf_lightning.datamodules.parquet import csv_to_parquet


def to_parquet(
    path: Path,
    out: Path,
    *,
    encoding: str | None = None,
    delimiter: str = ",",
    missing_values: list[str] | None = None,
    categorical: list[str] | None = None,
    drop: list[str] | None = None,
) -> None:
    """Convert a CSV file of any size to a directory of Parquet files, which training streams.

    Args:
        path: CSV file, which may be compressed by gzip.
        out: Directory to write to; it must not hold Parquet files yet.
        encoding: Encoding of the file; by default UTF-8.
        delimiter: Separator of the cells.
        missing_values: Cells that count as missing; by default empty ones, NA, NaN, null and the like.
        categorical: Columns to take as categories, whatever they look like.
        drop: Columns to leave out.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name)
        written = csv_to_parquet(
            path,
            out,
            encoding=encoding,
            delimiter=delimiter,
            missing_values=missing_values,
            categorical=categorical or (),
            drop=drop or (),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    rows = pq.read_metadata(written).num_rows
    print(f"{rows:,} rows are in {out}. Train on them: --data table --data.path {quote(str(out))}")  # noqa: T201
