"""W&B without an account: the real client, offline; and what to do when it is not installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules.sources import cache_dir

TRAIN = Path(__file__).resolve().parents[1] / "train.py"


def test_without_a_key_a_run_is_logged_offline_and_says_how_to_send_it(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "FAIRRF_CACHE": environment.get("FAIRRF_CACHE", str(cache_dir()))}
    options = ["--data=adult", "--trainer.logger=wandb", "--trainer.max_epochs=1"]
    done = subprocess.run(
        [sys.executable, str(TRAIN), "fit", *options],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "wandb sync" in done.stderr + done.stdout
    assert "Test split" in done.stdout
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    (config,) = tmp_path.glob("lightning_logs/*/config.yaml")
    assert (config.parent / "run.json").is_file()
    assert list(config.parent.glob("checkpoints/*.ckpt"))


def test_a_missing_wandb_is_asked_for_by_name(
    cli: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit) as exit_info:
        cli("fit --data adult --trainer.logger wandb")
    assert exit_info.value.code == 2
    assert "pip install 'fairrf-lightning[wandb]'" in capsys.readouterr().err


def test_several_loggers_at_once(cli: Callable[[str], None], tmp_path: Path) -> None:
    del cli  # for its folder and arguments
    loggers = '[{"class_path":"lightning.pytorch.loggers.CSVLogger","init_args":{"save_dir":"a"}}]'
    main(["fit", "--data=adult", "--trainer.max_epochs=1", f"--trainer.logger={loggers}"])
    assert list(tmp_path.glob("a/lightning_logs/version_0/metrics.csv"))
