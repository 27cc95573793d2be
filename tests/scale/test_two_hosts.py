"""Training on two hosts that share nothing but a network gives the run of two processes on one host."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import Host, connect, why_impossible
from tests.reliability.runs import QUIET, SMALL, TRAIN, assert_same_run
from tests.scale.conftest import EPOCHS, LAST, assert_resumed_as, copy_last, wait_for_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible())),
]
# A host that vanishes without closing its connections is noticed after this time; by default 30 minutes.
STRATEGY = ("--trainer.strategy=DDPStrategy", "--trainer.strategy.timeout=0:01:00")


def torchrun(host: Host, *args: str, processes: int = 1) -> subprocess.Popen[bytes]:
    """Start the command of docs/scaling.md on a host."""
    launcher = f"--nnodes 2 --nproc_per_node {processes} --rdzv_backend c10d --rdzv_endpoint host0:29500"
    placed = ["--trainer.num_nodes=2", f"--trainer.devices={processes}", *STRATEGY]
    args = (args[0], *placed, *args[1:], *QUIET)
    command = ["-m", "torch.distributed.run", *launcher.split(), str(TRAIN), *args]
    return host.start([sys.executable, *command])


def run_on(hosts: tuple[Host, Host], *args: str, processes: int = 1) -> None:
    """Run the same command on both hosts to its end."""
    started = [torchrun(host, *args, processes=processes) for host in hosts]
    for host, process in zip(hosts, started, strict=True):
        assert process.wait(timeout=300) == 0, host.output


def test_two_hosts_train_and_test_as_two_processes_of_one(
    hosts: tuple[Host, Host], on_one_host: Path
) -> None:
    run_on(hosts, *SMALL, EPOCHS)
    first, second = hosts
    assert_same_run(first.work, on_one_host)
    assert "Test split" in first.output
    # It has tested the chosen checkpoint, which it was sent: it has none on its own disk.
    assert not list(second.disk.rglob("*.ckpt"))


@pytest.mark.parametrize("silently", [False, True])
def test_a_killed_host_is_restarted_and_the_run_resumed(
    hosts: tuple[Host, Host], on_one_host: Path, *, silently: bool
) -> None:
    first, second = hosts
    started = [torchrun(host, *SMALL, EPOCHS) for host in hosts]
    wait_for_checkpoint(first)
    second.kill(silently=silently)
    assert [process.wait(timeout=200) != 0 for process in started] == [True, True], "killed too late"

    second.unplug()
    second.boot()
    connect(first, second)
    copy_last(first, second)
    run_on(hosts, *SMALL, EPOCHS, "--ckpt_path", str(LAST))
    assert_resumed_as(first, on_one_host)


def test_each_host_fetches_the_data_once(hosts: tuple[Host, Host]) -> None:
    first = hosts[0]
    rows = (f"{n * n % 7},{n % 40},{'fm'[n % 2]},{n % 3 % 2}" for n in range(400))
    content = "\n".join(["age,zip,sex,hired", *rows]).encode()
    (first.disk / "served").mkdir()
    (first.disk / "served" / "people.csv").write_bytes(content)
    serve = ["-m", "http.server", "8000", "--bind", first.address, "--directory", str(first.own / "served")]
    server = first.start([sys.executable, *serve], PYTHONUNBUFFERED="1")
    args = "fit --data table --data.url http://host0:8000/people.csv --data.target hired --data.related [age]"
    digest = hashlib.sha256(content).hexdigest()
    options = f"--data.sensitive sex --data.sha256 {digest} --trainer.max_epochs 1 --trainer.accelerator cpu"
    run_on(hosts, *args.split(), *options.split(), processes=2)
    server.kill()
    fetched = re.findall(r'^(\S+) .*"GET /people.csv', first.output, flags=re.MULTILINE)
    assert sorted(fetched) == [host.address for host in hosts]
    for host in hosts:
        assert len(list((host.disk / "home").rglob("people.csv"))) == 1
