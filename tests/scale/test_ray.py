"""The code of docs/ray.md on a Ray cluster of two nodes gives the run of two processes on one host."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.hosts import Host, two_hosts, why_impossible
from fairrf_lightning.checkpoints import load_checkpoint
from fairrf_lightning.load import evaluate, load_run
from tests.reliability.runs import TRAIN, start, wait

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible())),
    pytest.mark.filterwarnings("ignore"),  # of Ray, about itself
]
PAGE = TRAIN.parent / "docs" / "ray.md"
# No statistics are sent, and memory that other programs of this machine use is no reason to kill a worker.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
REPORT = """
import json
Path("found.json").write_text(json.dumps({"metrics": result.metrics, "path": str(run.path)}))
"""
# The code of the page without Ray.
WITHOUT_RAY = {
    "strategy=RayDDPStrategy()": 'strategy="ddp"',
    "plugins=[RayLightningEnvironment()]": "plugins=[]",
    'devices="auto"': "devices=2",
    'accelerator="auto"': 'accelerator="cpu"',
    "RayTrainReportCallback()": "Report()",
    "prepare_trainer(trainer).fit(": "trainer.fit(",
}
REPORT_OF_DDP = """
import json
from lightning import Callback

class Report(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        trainer.save_checkpoint("ddp.ckpt")
        path = str(Path("ddp.ckpt").absolute())
        Path("found.json").write_text(json.dumps({"metrics": metrics, "path": path}))

train()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Host, Host, Path]]:
    """Start Ray on two hosts; return them with the folder that they share."""
    # pytest's own folder has a path that is too long for the sockets of Ray.
    with tempfile.TemporaryDirectory() as folder:
        (shared := Path(folder) / "shared").mkdir()
        with two_hosts(Path(folder)) as (first, second):
            _ray_start(
                first, "--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={first.own}/ray"
            )
            _ray_start(second, "--address=host0:6379")
            yield first, second, shared


def _ray_start(host: Host, *options: str) -> None:
    ray = [sys.executable, "-m", "ray.scripts.scripts"]  # the command, whatever folder holds it
    sizes = ["--num-cpus=1", "--object-store-memory=100000000", f"--node-ip-address={host.address}"]
    process = host.start([*ray, "start", *options, *sizes], **SETTINGS)
    assert process.wait(timeout=200) == 0, host.output


@pytest.fixture(scope="module")
def with_ray(cluster: tuple[Host, Host, Path]) -> dict[str, Any]:
    """Run the code of the page; return the metrics and the checkpoint of its last epoch."""
    first, _, shared = cluster
    code = _code_of_the_page().replace("/shared/ray", str(shared))
    (first.work / "page.py").write_text(code + REPORT, encoding="utf-8")
    address = f"{first.address}:6379"
    process = first.start([sys.executable, "page.py"], RAY_ADDRESS=address, **SETTINGS)
    assert process.wait(timeout=500) == 0, first.output
    return _found(first.work)


@pytest.fixture(scope="module")
def with_ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the same training by Lightning's own DDP on two processes; return the same."""
    folder = tmp_path_factory.mktemp("ddp")
    code = _code_of_the_page().partition("nodes = ")[0]
    for part, other in WITHOUT_RAY.items():
        assert part in code
        code = code.replace(part, other)
    (folder / "page.py").write_text(code + REPORT_OF_DDP, encoding="utf-8")
    ended, printed = wait(start(["page.py"], folder), folder)
    assert ended == 0, printed
    return _found(folder)


def _code_of_the_page() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    return str(code)


def _found(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    return found | {"checkpoint": load_checkpoint(found["path"])}


def test_each_node_trains_one_of_the_processes(
    cluster: tuple[Host, Host, Path], with_ray: dict[str, Any]
) -> None:
    del with_ray
    ranks = []
    for host in cluster[:2]:
        logs = [log.read_text("utf-8") for log in (host.disk / "ray").glob("session_2*/logs/worker-*")]
        ranks.append(set(re.findall(r"\[rank: (\d)\] Seed set", "".join(logs))))
    assert sorted(ranks, key=sorted) == [{"0"}, {"1"}]


def test_weights_and_lambda_are_those_of_ddp(with_ray: dict[str, Any], with_ddp: dict[str, Any]) -> None:
    found, wanted = with_ray["checkpoint"], with_ddp["checkpoint"]
    assert found["global_step"] == wanted["global_step"] == 24
    assert found["state_dict"].keys() == wanted["state_dict"].keys()
    torch.testing.assert_close(found["state_dict"], wanted["state_dict"], rtol=0, atol=1e-5)
    weights = wanted["state_dict"]["penalty.weights"].tolist()
    assert weights != pytest.approx([1 / 3] * 3, abs=1e-3), "lambda was never updated"


def test_metrics_are_those_of_ddp(with_ray: dict[str, Any], with_ddp: dict[str, Any]) -> None:
    wanted = with_ddp["metrics"]
    assert {"val_acc", "val_dp_gap", "val_objective", "val_eo_gap_low", "lambda/height"} <= wanted.keys()
    assert {name: with_ray["metrics"][name] for name in wanted} == pytest.approx(wanted, abs=1e-6)


def test_load_run_reads_the_checkpoint_of_ray(with_ray: dict[str, Any]) -> None:
    run = load_run(with_ray["path"])
    assert run.notices == []
    rows = evaluate(run, "val")
    accuracy = ((rows.probabilities >= 0.5).long() == rows.target).double().mean()
    assert float(accuracy) == pytest.approx(with_ray["metrics"]["val_acc"], abs=1e-6)
