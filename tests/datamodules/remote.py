"""What tests of each remote storage share: a partitioned table, training on it, and its errors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pyarrow import fs

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.errors import InputError
from tests.datamodules.test_streaming import people, table
from tests.trainers import quiet_trainer

FILES = 12


def put(system: fs.FileSystem, name: str, frame: pd.DataFrame) -> None:
    packed = io.BytesIO()
    frame.to_parquet(packed, index=False, row_group_size=50)
    with system.open_output_stream(f"people/{name}") as out:
        out.write(packed.getvalue())


def put_people(system: fs.FileSystem, bucket: str, folder: str = "all") -> str:
    frame = people()
    for number in range(FILES):
        put(system, f"{folder}/year={2020 + number % 3}/{number:02}.parquet", frame.iloc[number::FILES])
    return f"{bucket}/{folder}"


def copied(system: fs.FileSystem, folder: Path) -> str:
    for info in system.get_file_info(fs.FileSelector("people/all", recursive=True)):
        if info.is_file:
            target = folder / Path(info.path).relative_to("people/all")
            target.parent.mkdir(parents=True, exist_ok=True)
            with system.open_input_file(info.path) as source:
                target.write_bytes(source.read())
    return str(folder)


def fit(path: str, folder: Path, epochs: int = 1, resume: Path | None = None) -> tuple[FairRFModule, Any]:
    torch.manual_seed(0)
    trainer = quiet_trainer(
        default_root_dir=folder, max_epochs=epochs, num_sanity_val_steps=0, log_every_n_steps=1
    )
    model = FairRFModule(eta=0.3)
    trainer.fit(model, datamodule=table(path, batch_size=64), ckpt_path=resume)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return model, trainer


def weights(model: FairRFModule) -> list[Any]:
    return [parameter.tolist() for parameter in model.parameters()]


def check_it_trains_as_a_local_copy(system: fs.FileSystem, bucket: str, folder: Path) -> tuple[str, Any]:
    """Compare a remote table with its local copy, and a resumed run with a whole one.

    Returns:
        The address of the table, and the trainer of the resumed run.
    """
    address = put_people(system, bucket)
    local, _ = fit(copied(system, folder / "local"), folder, epochs=2)
    remote, _ = fit(address, folder, epochs=2)
    assert weights(local) == weights(remote)
    fit(address, folder, epochs=1)
    resumed, trainer = fit(address, folder, epochs=2, resume=folder / "1.ckpt")
    assert weights(resumed) == weights(remote)
    return address, trainer


def refused(path: str) -> str:
    with pytest.raises(InputError) as caught:
        TableDataModule(path, target="hired", related=["age"]).setup("fit")
    message = str(caught.value)
    assert len(message.splitlines()) <= 3
    return message
