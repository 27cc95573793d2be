"""Peak memory of a large CSV file: read into memory, or converted and streamed.

Each category of a column is a column of the inputs in memory, so a file of many categories takes more.

python benchmarks/csv_memory.py [megabytes]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

_ROWS_AT_ONCE = 100_000


def write_csv(path: Path, megabytes: int) -> None:
    """Write a table of numbers, categories, S and a label."""
    draw = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        file.write("age,income,score,town,job,sex,hired\n")
        while file.tell() < megabytes * 1_000_000:
            age, town, job, sex, hired = draw.integers(0, [60, 4, 2, 2, 2], (_ROWS_AT_ONCE, 5)).T
            money, score = draw.random(_ROWS_AT_ONCE) * 1e5, draw.standard_normal(_ROWS_AT_ONCE)
            rows = zip(age, money, score, town, job, sex, hired, strict=True)
            file.writelines(
                f"{a + 18},{m:.2f},{s:.6f},town {t},job {j},{'fm'[x]},{h}\n" for a, m, s, t, j, x, h in rows
            )


def run(task: str, folder: Path) -> None:
    """Run one of the ways to set up a table and print the peak memory in bytes, imports subtracted."""
    from fairrf_lightning.datamodules import TableDataModule  # noqa: PLC0415 - in the process measured
    from fairrf_lightning.datamodules.files import csv_to_parquet  # noqa: PLC0415

    before = _peak()
    if task == "convert":
        csv_to_parquet(folder / "people.csv", folder / "people")
    else:
        path = folder / ("people.csv" if task == "memory" else "people")
        data = TableDataModule(str(path), target="hired", related=["age"], sensitive="sex", seed=0)
        data.setup("fit")
        for _ in data.train_dataloader():
            pass
    print(_peak() - before)


def measure(task: str, folder: Path) -> int:
    """Return the peak memory of a task, in bytes."""
    command = [sys.executable, __file__, task, str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])  # noqa: S603


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(megabytes: int) -> None:
    """Print a table of the peak memory of each way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "people.csv", megabytes)
        size = (folder / "people.csv").stat().st_size
        for task in ("memory", "convert", "stream"):
            peak = measure(task, folder)
            print(f"{task:8} {peak / 1e6:8,.0f} MB  {peak / size:5.2f} times the file")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run(sys.argv[1], Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 300)
