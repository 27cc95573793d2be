"""The learning rate has one owner, and Adam is fused only where Lightning can clip its gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.tuner.tuning import Tuner

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.test_module import PeopleData, quiet_trainer


@pytest.mark.filterwarnings("ignore:.*enable_checkpointing.*")
def test_lr_find_changes_the_learning_rate_and_nothing_else(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module, updates = FairRFModule(backbone=Linear, lr=1e-3), LambdaUpdateCallback(every_n_steps=4)
    trainer = quiet_trainer(
        max_epochs=10, callbacks=[PretrainCallback(epochs=1), updates], default_root_dir=tmp_path
    )
    found = Tuner(trainer).lr_find(module, datamodule=PeopleData(), num_training=30)
    assert found is not None
    suggested = found.suggestion()
    assert suggested is not None
    assert suggested != 1e-3
    assert module.penalty.penalised_steps == 0
    trainer.fit(module, PeopleData())
    assert trainer.optimizers[0].param_groups[0]["lr"] == module.hparams["lr"] == suggested
    assert module.penalty.penalised_steps == 54, "nine of ten epochs: the steps of lr_find do not count"
    assert module.penalty.updates == 13


def test_lr_find_is_refused_where_it_could_change_nothing(tmp_path: Any) -> None:
    module = FairRFModule(backbone=Linear, optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = quiet_trainer(max_epochs=1, default_root_dir=tmp_path)
    with pytest.raises(AttributeError, match="learning rate"):
        Tuner(trainer).lr_find(module, datamodule=PeopleData(), num_training=30)


@pytest.mark.filterwarnings("ignore:You passed .*16-mixed")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "32-true"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_are_clipped_in_any_precision(precision: Any, clip: float | None) -> None:
    """On a processor Lightning turns 16-mixed into bf16-mixed."""
    module = FairRFModule(backbone=Linear, eta=0.5)
    trainer = quiet_trainer(max_epochs=1, precision=precision, gradient_clip_val=clip)
    trainer.fit(module, PeopleData())
    (optimizer,) = trainer.optimizers
    assert optimizer.param_groups[0]["fused"] is not ("mixed" in precision and clip is not None)
    assert module.penalty.penalised_steps == 6
    assert all(bool(parameter.isfinite().all()) for parameter in module.parameters())
