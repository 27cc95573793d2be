"""A backbone has the same short names in Python as on the command line."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from lightning import Trainer

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import BACKBONES, BackboneName, LinearSVM
from fairrf_lightning.cli.short_names import SHORT_NAMES
from fairrf_lightning.errors import InputError
from fairrf_lightning.methods import ARLModule

RELATED = {"age": [0]}


def test_every_short_name_of_the_command_line_is_known() -> None:
    assert set(BACKBONES) == set(SHORT_NAMES["model.backbone"]) == set(get_args(BackboneName))
    for name, kind in BACKBONES.items():
        assert type(FairRFModule(3, RELATED, backbone=name).backbone) is kind
        path = SHORT_NAMES["model.backbone"][name]
        assert path == f"fairrf_lightning.backbones.{kind.__name__}"
    assert type(ARLModule(3, RELATED, backbone="linear").backbone) is BACKBONES["linear"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="backbone = 'lineer': no such name; did you mean 'linear'"):
        FairRFModule(3, RELATED, backbone="lineer")  # type: ignore[arg-type]


def test_a_checkpoint_remembers_the_name(tmp_path: Path) -> None:
    module = FairRFModule(3, RELATED, backbone="svm")
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = FairRFModule.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert type(loaded.backbone) is LinearSVM
    inputs = torch.randn(5, 3)
    assert torch.equal(loaded(inputs), module(inputs))
