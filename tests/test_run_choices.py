"""What a run says about itself is what it used: the tested checkpoint, the recorded options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

Cli: TypeAlias = Callable[[str], None]
RUN = Path("lightning_logs/version_0")
SMALL = "--data synthetic --data.n_rows 600 --trainer.max_epochs 2"
PRESETS = Path(__file__).parents[1] / "callbacks"


def test_a_checkpoint_chosen_by_s_is_kept_but_not_tested(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli(f"fit {SMALL} --model.lr 0.02 --trainer.callbacks+={PRESETS / 'keep_fairest.yaml'}")
    assert "checkpoints/best.ckpt" in capsys.readouterr().out.partition("Checkpoint: ")[2].splitlines()[0]
    assert list((RUN / "checkpoints").glob("fairest-*.ckpt"))


def test_the_config_of_a_run_has_the_update_interval_that_was_used(cli: Cli) -> None:
    cli(f"fit {SMALL}")
    config = yaml.safe_load((RUN / "config.yaml").read_text(encoding="utf-8"))
    assert config["lambda_update"]["every_n_steps"] == 3  # 300 training rows in batches of 32
    assert config["data"]["init_args"]["batch_size"] == 32


def test_a_thread_can_run_a_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failures.append(args.exc_value))
    thread = threading.Thread(target=cli, args=(f"fit {SMALL}",))
    thread.start()
    thread.join()
    assert not failures
    assert (RUN / "checkpoints" / "last.ckpt").is_file()
