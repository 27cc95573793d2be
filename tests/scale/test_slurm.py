"""The script of docs/scaling.md on a SLURM cluster of two hosts gives the run of two processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.hosts import Host, why_impossible
from tests.reliability.runs import QUIET, SMALL, TRAIN, assert_same_run
from tests.scale.conftest import EPOCHS, LAST, assert_resumed_as, copy_last, wait_for_checkpoint

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_MISSING = [name for name in _PROGRAMS if shutil.which(name) is None]
WHY_NOT = (
    f"needs the programs {', '.join(_MISSING)} (apt-get install slurm-wlm munge)"
    if _MISSING
    else why_impossible()
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
PAGE = TRAIN.parent / "docs" / "scaling.md"
CONF = """
ClusterName=two_hosts
SlurmctldHost=host0
SlurmUser=root
AuthInfo=socket={own}/munge/socket
StateSaveLocation={own}/slurm/state
SlurmdSpoolDir={own}/slurm/spool
SlurmctldPidFile={own}/slurm/slurmctld.pid
SlurmdPidFile={own}/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
NodeName=host0,host1 CPUs=1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES
"""


@pytest.fixture
def cluster(hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Start SLURM on two hosts: the controller on the first, a node on each."""
    key = os.urandom(128)
    for host in hosts:
        for folder in ("munge", "slurm/state", "slurm/spool"):
            (host.disk / folder).mkdir(parents=True)
        (host.disk / "slurm.conf").write_text(CONF.format(own=host.own), encoding="utf-8")
        (host.disk / "munge/key").write_bytes(key)
        (host.disk / "munge/key").chmod(0o600)
        files = [f"--{name}-file={host.own}/munge/{name}" for name in ("key", "log", "pid", "seed")]
        munge = host.start(["munged", "--force", f"--socket={host.own}/munge/socket", *files])
        assert munge.wait() == 0, host.output
    slurm(hosts[0], "slurmctld", "-D", "-i")
    for host in hosts:
        slurm(host, "slurmd", "-D", "-N", host.name)
    deadline = time.monotonic() + 60
    while slurm(hosts[0], "sh", "-c", "test $(sinfo -h -N -t idle | wc -l) = 2").wait():
        assert time.monotonic() < deadline, hosts[0].output
        time.sleep(0.2)
    return hosts


def slurm(host: Host, *command: str) -> subprocess.Popen[bytes]:
    """Start a program of SLURM on a host."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return host.start(command, SLURM_CONF=str(host.own / "slurm.conf"), PATH=path)


def submit(host: Host, *options: str) -> subprocess.Popen[bytes]:
    """Submit the script of the page, for two nodes with one process each and a smaller run."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    command = " ".join(["fit", *SMALL[1:], EPOCHS, *QUIET, *options])
    for part, other in {
        "--nodes=4": "--nodes=2",
        "--ntasks-per-node=8": "--ntasks-per-node=1",
        "--cpus-per-task=4": "--cpus-per-task=1",
        "num_nodes 4": "num_nodes 2",
        "devices 8": "devices 1",
        "fit --data adult": command,
        "train.py": str(TRAIN),
    }.items():
        assert script.count(part) == 1, part
        script = script.replace(part, other)
    (host.work / "job.sh").write_text(script, encoding="utf-8")
    return slurm(host, "sbatch", "--wait", "job.sh")


def printed(host: Host, job: int) -> str:
    return (host.work / f"slurm-{job}.out").read_text("utf-8")


def test_a_job_on_two_nodes_is_the_run_of_two_processes(
    cluster: tuple[Host, Host], on_one_host: Path
) -> None:
    first, second = cluster
    assert submit(first).wait(timeout=300) == 0, first.output
    assert_same_run(first.work, on_one_host)
    assert "Test split" in printed(first, 1)
    assert not list(second.disk.rglob("*.ckpt"))


def test_a_cancelled_job_saves_and_is_resumed(cluster: tuple[Host, Host], on_one_host: Path) -> None:
    first, second = cluster
    job = submit(first)
    wait_for_checkpoint(first)
    assert slurm(first, "scancel", "1").wait() == 0
    assert job.wait(timeout=100) != 0, "cancelled too late"
    assert "Stopped by SIGTERM" in printed(first, 1)
    copy_last(first, second)
    assert submit(first, "--ckpt_path", str(LAST)).wait(timeout=300) == 0, first.output
    assert_resumed_as(first, on_one_host)
