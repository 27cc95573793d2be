"""The command ``to_parquet``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from fairrf_lightning.cli.parsing import takes_options_of
from fairrf_lightning.datamodules.files import csv_to_parquet


@takes_options_of(csv_to_parquet, "path", "out", "progress")
def to_parquet_command(path: Path, out: Path, **options: Any) -> None:
    """Convert a CSV file of any size to a directory of Parquet files, which training streams.

    Args:
        path: CSV file, which may be compressed by gzip.
        out: Directory to write to; it must not hold Parquet files yet.
        options: Passed on to ``csv_to_parquet``.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name)
        written = csv_to_parquet(
            path,
            out,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **options,
        )
    rows = pq.read_metadata(written).num_rows
    print(f"{rows:,} rows are in {out}. Train on them: --data table --data.path {quote(str(out))}")  # noqa: T201
