"""The sweep file works unchanged with `wandb sweep` and `wandb agent`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fairrf_lightning.datamodules.download import cache_dir
from tests.tracking.wandb_server import Server

ROOT = Path(__file__).resolve().parents[2]
CACHE = str(cache_dir())  # before the tests' home is another
# The real client; its agent only looks more often than each 5 seconds for the end of a run.
IMPATIENT = (
    "import wandb.wandb_agent as of; of.Agent.POLL_INTERVAL = 0.2; from wandb.cli.cli import cli; cli()"
)
DRAWN = {"model.eta": 0.31, "lambda_update.beta": 0.7, "seed_everything": 3}


@pytest.mark.slow
def test_an_agent_trains_what_the_server_draws(server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to(ROOT / "train.py")
    made = _wandb(server, tmp_path, "sweep", str(ROOT / "sweeps" / "adult.yaml"))
    assert "wandb agent me/lightning_logs/sweep0" in made.stderr
    config = yaml.safe_load(server.sweeps["sweep0"])
    assert set(config["parameters"]) == set(DRAWN)
    # A server may fix more than it draws: a few batches are enough here.
    few = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 20}
    arguments = {name: {"value": value} for name, value in (DRAWN | few).items()}
    server.commands = [{"type": "run", "run_id": "drawn", "program": config["program"], "args": arguments}]
    _wandb(server, tmp_path, "agent", "--count", "1", "me/lightning_logs/sweep0")
    (run,) = server.runs.values()
    assert list(server.runs) == ["drawn"]
    assert run.sweep == "sweep0"
    assert run.complete
    assert {name: run.config[name] for name in ("eta", "beta", "seed")} == {
        "eta": 0.31,
        "beta": 0.7,
        "seed": 3,
    }
    assert run.config["data"]["data"] == "AdultDataModule"
    assert 0.7 < run.summary["test_acc"] < 0.9
    assert "chosen/val_eo_gap" in run.summary


def _wandb(server: Server, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    own = str(Path(sys.executable).parent)  # the agent starts the `python` that it finds
    environment = os.environ | server.environment() | {"FAIRRF_CACHE": CACHE}
    environment |= {"PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, *args],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
