"""The real client online, against a server on loopback."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.tracking.conftest import finish
from tests.tracking.run_file import read_run
from tests.tracking.wandb_server import KEY, Server

FIT = "fit --data synthetic --data.n_rows 2000 --trainer.max_epochs 2 --trainer.logger wandb"


def test_a_run_arrives_with_charts_tables_and_checkpoints(cli: Cli, online: Server, tmp_path: Path) -> None:
    cli(f"{FIT} --trainer.logger.log_model true")
    finish()
    ((run_id, run),) = online.runs.items()
    assert run.complete
    assert [row["epoch"] for row in run.history if "val_acc" in row] == [0, 1]
    assert run.config["fairness"]["sensitive"] == "group"
    axes = run.config["_wandb"]["m"]  # "1" the name, "5" the axis as its place in the list, from 1
    assert [axes[item["5"] - 1]["1"] for item in axes if item.get("1") == "lambda/height"] == ["epoch"]
    assert run.summary["test_eo_gap"] == next(row["test_eo_gap"] for row in run.history if "test_acc" in row)
    assert {"max"} == set(run.summary["val_acc"])
    assert "pareto/eo_gap" in run.config["_wandb"]["visualize"]
    assert any(name.startswith("media/table/test/results") for name in run.files)
    assert {"model", "run_table"} == {artifact["artifactTypeName"] for artifact in online.artifacts}
    assert (tmp_path / "lightning_logs" / run_id / "run.json").is_file()


def test_an_offline_run_is_synced_later(cli: Cli, server: Server, tmp_path: Path) -> None:
    cli(FIT)
    finish()
    (directory,) = tmp_path.glob("wandb/offline-run-*")
    command = [sys.executable, "-m", "wandb", "sync", str(directory)]
    environment = server.environment() | {"HOME": str(tmp_path)}
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    (run,) = server.runs.values()
    (file,) = directory.glob("run-*.wandb")
    written = read_run(file)
    assert [_plain(row) for row in run.history] == [_plain(row) for row in written.history]
    assert run.summary["chosen/val_eo_gap"] == written.summary["chosen/val_eo_gap"]
    assert run.config["data"] == written.config["data"]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in row.items() if not name.startswith("_") and isinstance(value, float)
    }


def test_a_report_that_fails_costs_a_warning_not_the_training(cli: Cli, online: Server) -> None:
    online.mute.add("ArtifactType")  # tables and checkpoints are artifacts
    with pytest.warns(UserWarning, match="^W&B:") as warned:
        cli(f"{FIT} --trainer.logger.log_model all")
    finish()
    said = [str(warning.message) for warning in warned]
    assert sum("W&B: the report of this run is incomplete" in line for line in said) == 1
    assert any("W&B: a checkpoint was not logged as an artifact" in line for line in said)
    (run,) = online.runs.values()
    assert "test_acc" in run.summary


def test_the_users_own_choices_are_kept(
    cli: Cli, online: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ("--trainer.logger.offline true", "--trainer.logger.mode offline"):
        cli(f"{FIT} {options}")
        finish()
        monkeypatch.delenv("WANDB_MODE", raising=False)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    monkeypatch.setenv("WANDB_MODE", "disabled")
    cli(FIT)
    assert len(list(tmp_path.glob("wandb/*run-*"))) == 2
    assert not online.operations
    assert KEY not in "".join(path.read_text() for path in tmp_path.glob("lightning_logs/*/config.yaml"))
