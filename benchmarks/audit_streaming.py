"""Audit ten million predictions from Parquet and from CSV: seconds and peak memory of each.

    python benchmarks/audit_streaming.py [rows]

Each audit runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fairrf_lightning.cli import main


def write(folder: Path, rows: int) -> list[Path]:
    """Write the same made-up predictions as Parquet and as CSV, a million rows at a time."""
    rng = np.random.default_rng(0)
    paths = [folder / "predictions.parquet", folder / "predictions.csv"]
    schema = pa.schema(
        [("prob", pa.float64()), ("target", pa.int8()), ("race", pa.string()), ("sex", pa.string())]
    )
    with pq.ParquetWriter(paths[0], schema) as parquet, arrow_csv.CSVWriter(paths[1], schema) as csv:
        for start in range(0, rows, 1_000_000):
            size = min(1_000_000, rows - start)
            race = rng.integers(0, 5, size)
            prob = rng.beta(2 + race / 4, 3, size)
            table = pa.table(
                {
                    "prob": prob,
                    "target": pa.array((rng.random(size) < prob).astype(np.int8)),
                    "race": pa.array(np.array(["a", "b", "c", "d", "e"])[race]),
                    "sex": pa.array(np.array(["f", "m"])[rng.integers(0, 2, size)]),
                },
                schema=schema,
            )
            parquet.write_table(table)
            csv.write_table(table)
    return paths


def measure(path: Path) -> None:
    """Audit one file and print what it took."""
    start = time.perf_counter()
    main(
        [
            "audit",
            str(path),
            "--groups",
            "race,sex",
            "--out",
            str(path.with_suffix(".audit")),
        ]
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{path.suffix[1:]}: {seconds:.1f} s, peak memory {peak:.2f} GB")


def run(rows: int) -> None:
    """Write the files and audit each in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        for path in write(Path(folder), rows):
            print(f"{path.name}: {rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB", flush=True)
            command = [sys.executable, __file__, "--measure", str(path)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
            print(printed.splitlines()[-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        run(int(sys.argv[1]) if sys.argv[1:] else 10_000_000)
