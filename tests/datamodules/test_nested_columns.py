"""Lists, structs and bytes in Parquet files: one clear error, wherever the column is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.errors import InputError

ROWS = 60
ODD = {
    "list": pa.array([[n % 2] for n in range(ROWS)]),
    "struct": pa.array([{"a": n % 2} for n in range(ROWS)]),
    "map": pa.array([[("k", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"x", b"y"] * (ROWS // 2)),
}
PLAIN = {"age": pa.array(np.arange(ROWS) % 7), "hired": pa.array(np.arange(ROWS) % 2)}


@pytest.fixture(params=["directory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pq.write_table(pa.table(PLAIN | ODD), tmp_path / "people.parquet")
    return str(tmp_path if request.param == "directory" else tmp_path / "people.parquet")


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("option", ["sensitive", "categorical", "target", "related"])
def test_column_of_another_type_is_refused(path: str, name: str, option: str) -> None:
    named: Any = name if option in ("sensitive", "target") else [name]
    options: dict[str, Any] = {"target": "hired", "related": ["age"], "drop": [n for n in ODD if n != name]}
    data = TableDataModule(path, **options | {option: named}, seed=0)
    with pytest.raises(InputError) as caught:
        data.setup("fit")
    message = str(caught.value)
    assert message.startswith(f"column '{name}' is of type {name}")
    assert f"leave it out (drop: [{name}])" in message


def test_type_is_checked_in_every_file(tmp_path: Path) -> None:
    texts = {"sex": pa.array(["f", "m"] * (ROWS // 2))}
    pq.write_table(pa.table(PLAIN | texts), tmp_path / "0.parquet")
    pq.write_table(pa.table(PLAIN | {"sex": ODD["list"]}), tmp_path / "1.parquet")
    data = TableDataModule(str(tmp_path), target="hired", related=["age"], sensitive="sex", seed=0)
    with pytest.raises(InputError, match="column 'sex' is of type list"):
        data.setup("fit")
