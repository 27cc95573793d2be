"""Quick steps train exactly as Lightning's own, and give way to whoever needs a hook within the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import SyntheticDataModule

pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")


class UsesHook(Callback):
    """Uses a hook within the step, so that the steps stay Lightning's."""

    def __init__(self) -> None:
        self.calls = 0

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self.calls += 1


def fitted(folder: Path, *callbacks: Callback, **options: Any) -> tuple[Trainer, dict[str, Any]]:
    """Return the trainer and the checkpoint of a short fit."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"max_epochs": 2, "enable_progress_bar": False, "logger": False} | options
    fairness = [PretrainCallback(steps=3), LambdaUpdateCallback(every_n_steps=4)]
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[*fairness, *callbacks],
        enable_checkpointing=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(FairRFModule(), SyntheticDataModule(n_rows=800, seed=0))
    trainer.save_checkpoint(folder / "end.ckpt")
    return trainer, torch.load(folder / "end.ckpt", weights_only=True)


def is_quick(trainer: Trainer) -> bool:
    return type(trainer.fit_loop.epoch_loop.automatic_optimization) is not _AutomaticOptimization


def test_weights_and_progress_are_those_of_lightning(tmp_path: Path) -> None:
    quick, mine = fitted(tmp_path)
    usual, theirs = fitted(tmp_path, UsesHook())
    assert is_quick(quick)
    assert not is_quick(usual)
    assert mine["loops"]["fit_loop"] == theirs["loops"]["fit_loop"]
    assert mine["callbacks"] == theirs["callbacks"]
    for name, value in theirs["state_dict"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(mine["state_dict"][name], value), name


def test_a_hook_within_the_step_is_called(tmp_path: Path) -> None:
    hook = UsesHook()
    trainer, _ = fitted(tmp_path, hook)
    assert hook.calls == trainer.global_step > 0


@pytest.mark.parametrize(
    "options", [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}]
)
def test_options_of_the_step_stay_lightnings(options: dict[str, Any], tmp_path: Path) -> None:
    trainer, _ = fitted(tmp_path, **options)
    assert not is_quick(trainer)


def test_a_profiler_of_the_user_still_sees_the_steps(tmp_path: Path) -> None:
    trainer, _ = fitted(tmp_path, profiler="simple")
    assert not is_quick(trainer)
    assert any("optimizer_step" in name for name in trainer.profiler.recorded_durations)  # type: ignore[attr-defined]
