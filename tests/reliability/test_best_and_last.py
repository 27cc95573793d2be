"""One ``last.ckpt`` per run, always the newest; ``best.ckpt`` apart from it; a resume rewrites both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from lightning import Trainer

from fairrf_lightning.checkpoints import load_checkpoint
from fairrf_lightning.load import RunFolder
from tests.conftest import Refused
from tests.reliability.conftest import DATA, QUICK
from tests.reliability.runs import differ

CLI = Callable[[str], None]
FIT = " ".join(["fit", *DATA, *QUICK])


def best_epoch(run: str) -> int:
    history = pd.read_csv(f"lightning_logs/{run}/metrics.csv").dropna(subset=["val_objective"])
    return int(history["epoch"].to_numpy()[history["val_objective"].argmin()])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_last_is_the_newest_epoch_and_best_is_the_best(run_folder: Path) -> None:
    assert files(run_folder) == ["best.ckpt", "last.ckpt"]
    best, last = (load_checkpoint(run_folder / name) for name in ("best.ckpt", "last.ckpt"))
    assert best_epoch("version_0") < 2, "a test in which the last epoch is the best shows nothing"
    assert (last["epoch"], last["global_step"]) == (2, 15)
    assert best["epoch"] == best_epoch("version_0")


def test_a_resume_rewrites_last_in_place_and_the_report_uses_the_best(run_folder: Path, cli: CLI) -> None:
    options = "--model.lr 0.03 --pretrain.epochs 0 --trainer.max_epochs 5"
    cli(f"{FIT} {options} --ckpt_path {run_folder / 'last.ckpt'}")
    assert files(run_folder) == ["best.ckpt", "last.ckpt"]
    assert load_checkpoint(run_folder / "last.ckpt")["epoch"] == 4
    resumed = Path("lightning_logs/version_1")
    assert yaml.safe_load((resumed / "config.yaml").read_text())["trainer"]["max_epochs"] == 5
    assert not (resumed / "checkpoints").exists()
    for run in (resumed, resumed.with_name("version_0")):
        used = RunFolder(run).best_checkpoint
        assert used is not None
        assert used.samefile(run_folder / "best.ckpt")


def test_steps_write_the_newest_step_and_never_an_unmeasured_best(cli: CLI) -> None:
    cli(
        f"{FIT} --checkpoint.every_n_train_steps 4 --trainer.max_steps 14 --model.lr 0.03 --pretrain.epochs 0"
    )
    folder = Path("lightning_logs/version_0/checkpoints")
    assert files(folder) == ["best.ckpt", "last.ckpt"]
    assert load_checkpoint(folder / "last.ckpt")["global_step"] == 14
    assert load_checkpoint(folder / "best.ckpt")["global_step"] in (5, 10), "validation is after 5 and 10"


def test_another_run_does_not_overwrite_the_files_of_one(run_folder: Path, refused: Refused) -> None:
    before = (run_folder / "last.ckpt").read_bytes()
    assert "last.ckpt of another run" in refused(f"{FIT} --checkpoint.dirpath {run_folder}")
    assert (run_folder / "last.ckpt").read_bytes() == before
    before_all = {path: path.read_bytes() for path in run_folder.parent.rglob("*") if path.is_file()}
    assert len(before_all) >= 5
    again = f"{FIT} --trainer.logger csv --trainer.logger.version 0"
    assert "last.ckpt of another run" in refused(again)
    assert all(path.read_bytes() == content for path, content in before_all.items()), "its logs as well"


def test_each_process_of_another_run_ends_before_training(
    run_folder: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did not would wait for the first, for which SLURM sets no limit."""
    assert run_folder.is_dir()
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    monkeypatch.setattr(Trainer, "fit", lambda *_, **__: pytest.fail("has begun"))
    assert "last.ckpt of another run" in refused(f"{FIT} --trainer.logger csv --trainer.logger.version 0")


def test_early_stopping_stays_stopped_after_a_resume(cli: CLI) -> None:
    early = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val_objective"
    options = (
        f"--model.lr 0.03 --pretrain.epochs 0 --trainer.max_epochs 12 {early} --trainer.callbacks.patience=1"
    )
    cli(f"{FIT} {options}")
    last = Path("lightning_logs/version_0/checkpoints/last.ckpt")
    stopped = load_checkpoint(last)
    assert stopped["epoch"] < 11
    cli(f"{FIT} {options} --ckpt_path {last}")
    assert load_checkpoint(last)["global_step"] == stopped["global_step"]


def test_a_resume_that_finds_a_new_best_keeps_it(run_folder: Path, cli: CLI) -> None:
    before = load_checkpoint(run_folder / "best.ckpt")
    options = "--model.lr 0.03 --pretrain.epochs 0 --trainer.max_epochs 4"
    content = load_checkpoint(run_folder / "last.ckpt")
    for state in content["callbacks"].values():
        if "best_k_models" in state:
            state["best_k_models"] = {path: torch.tensor(9.0) for path in state["best_k_models"]}
            state["kth_value"] = state["best_model_score"] = torch.tensor(9.0)
    torch.save(content, run_folder / "last.ckpt")  # any epoch is better than that now
    cli(f"{FIT} {options} --ckpt_path {run_folder / 'last.ckpt'}")
    assert files(run_folder) == ["best.ckpt", "last.ckpt"]
    assert before["epoch"] == 1
    assert load_checkpoint(run_folder / "best.ckpt")["epoch"] == 3


def test_a_learning_rate_on_a_plateau_resumes_as_it_was(cli: CLI) -> None:
    plateau = (
        "--model.lr_scheduler lightning.pytorch.cli.ReduceLROnPlateau --model.lr_scheduler.monitor val_loss"
    )
    sgd = "--model.optimizer torch.optim.SGD --model.optimizer.lr 0.5 --checkpoint.dirpath"
    # No epoch is good enough: the learning rate falls after each.
    options = f"{FIT} {plateau} --model.lr_scheduler.patience 0 --model.lr_scheduler.threshold 1 {sgd}"
    cli(f"{options} whole --trainer.max_epochs 4")
    cli(f"{options} resumed --trainer.max_epochs 2")
    cli(f"{options} resumed --trainer.max_epochs 4 --ckpt_path resumed/last.ckpt")
    found, wanted = (load_checkpoint(f"{name}/last.ckpt") for name in ("resumed", "whole"))
    assert wanted["lr_schedulers"][0]["_last_lr"][0] < 0.01
    for part in ("lr_schedulers", "optimizer_states", "state_dict"):
        assert not list(differ(found[part], wanted[part], part))
