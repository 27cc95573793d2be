"""No key, a bad key, no network, no terminal: training is done in seconds, after one clear line."""

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger

from fairrf_lightning.messages import install_command
from fairrf_lightning.tracking import WandbLogger
from tests.conftest import Cli, Refused
from tests.tracking.conftest import finish, set_environment
from tests.tracking.run_file import read_run
from tests.tracking.wandb_server import KEY, Server

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
FIT = ["fit", "--data=synthetic", "--data.n_rows=2000", "--trainer.max_epochs=2", "--trainer.logger=wandb"]
Said = Callable[[], str]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return what was said of W&B: one line."""
    caplog.set_level("INFO", logger="lightning.pytorch.utilities.rank_zero")

    def lines() -> str:
        (line,) = [record.message for record in caplog.records if record.message.startswith("W&B:")]
        return line

    return lines


def _start(folder: Path) -> None:
    run = WandbLogger(save_dir=folder).experiment
    assert run.settings._offline
    finish()
    assert len(list(folder.glob("wandb/offline-run-*/run-*.wandb"))) == 1


def test_no_key(tmp_path: Path, said: Said) -> None:
    _start(tmp_path)
    assert "no API key is configured, so this run is logged offline" in said()
    assert f"wandb sync {tmp_path}/wandb/offline-run-*" in said()


@pytest.mark.parametrize("key", ["short", "x" * 40])
def test_a_malformed_key_and_one_that_the_server_rejects(
    tmp_path: Path, said: Said, server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    set_environment(monkeypatch, server.environment(key=key))
    _start(tmp_path)
    assert f"{server.url} does not take the API key" in said()


def test_no_network(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        set_environment(monkeypatch, {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_HTTP_TIMEOUT": "3"})
        _start(tmp_path)
    assert f"{url} cannot be reached" in said()


def test_a_project_that_the_account_may_not_write_to(tmp_path: Path, said: Said, online: Server) -> None:
    online.refuse.add("UpsertBucket")
    _start(tmp_path)
    assert "permission denied" in said()


def test_what_goes_wrong_offline_too_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(wandb.errors.UsageError):
        _ = WandbLogger(save_dir=tmp_path, project="no/such:name").experiment


def test_a_run_of_the_users_own_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with wandb.init(mode="offline") as run, pytest.warns(UserWarning, match="run already in progress"):
        assert WandbLogger().experiment is run


def test_lightnings_own_logger_is_replaced_on_the_command_line_beside_another(
    cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = f"{LightningWandbLogger.__module__}.{LightningWandbLogger.__name__}"
    csv = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "a"}}
    loggers = json.dumps([csv, {"class_path": own}], separators=(",", ":"))
    cli(f"fit --data synthetic --data.n_rows 500 --trainer.max_epochs 1 --trainer.logger {loggers}")
    assert "Test split" in capsys.readouterr().out
    assert list(tmp_path.glob("a/lightning_logs/version_0/metrics.csv"))
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    (config,) = tmp_path.glob("a/lightning_logs/*/config.yaml")
    assert "fairrf_lightning.tracking.WandbLogger" in config.read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_processes_log_one_run_and_do_not_ask_the_terminal_for_a_key(tmp_path: Path) -> None:
    here, there = pty.openpty()
    try:
        done = _train(tmp_path, ["--trainer.devices=2", "--trainer.accelerator=cpu"], stdin=there)
    finally:
        os.close(here)
        os.close(there)
    assert "Test split" in done.stdout
    assert "distributed_backend=gloo" in done.stderr
    assert done.stderr.count("no API key is configured") == 1
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    run = read_run(file)
    assert [row["epoch"] for row in run.history if "val_acc" in row] == [0, 1]
    (row,) = [row for row in run.history if "test_acc" in row]
    assert row["test_eo_gap"] == pytest.approx(
        abs(row["test_true_positive_rate/a"] - row["test_true_positive_rate/b"])
    )


def _train(folder: Path, options: list[str], stdin: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return subprocess.run(
        [sys.executable, str(TRAIN), *FIT, "--trainer.enable_progress_bar=false", *options],
        cwd=folder,
        env=environment,
        stdin=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )


def test_a_missing_wandb_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert install_command("wandb") in refused("fit --data synthetic --trainer.logger wandb")
    monkeypatch.undo()
