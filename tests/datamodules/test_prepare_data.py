from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from fairrf_lightning.datamodules import AdultDataModule
from fairrf_lightning.datamodules.download import RemoteFile
from fairrf_lightning.errors import InputError


def test_prepare_data_looks_at_every_file(tmp_path: Path) -> None:
    """Under DDP one process fetches in prepare_data; the others must find the files in setup."""

    class TwoFiles(AdultDataModule):
        files: Any = ()

    content = {name: f"content of {name}".encode() for name in ("first", "second")}
    TwoFiles.files = tuple(
        RemoteFile(name, hashlib.sha256(data).hexdigest(), len(data), "http://127.0.0.1:9/none")
        for name, data in content.items()
    )
    data = TwoFiles(data_dir=str(tmp_path))
    for name, value in content.items():
        (tmp_path / name).write_bytes(value)
    data.prepare_data()
    (tmp_path / "second").write_bytes(b"damaged")
    with pytest.raises(InputError, match="second"):
        data.prepare_data()
