"""Hosts on this machine: each has its own address, its own name, its own processes and its own disk.

A host is a process in namespaces of Linux (network, mount, process and name), so this needs root. Hosts are
connected by a virtual cable; nothing else can be reached. The disk is a folder that every host sees under
the same path, each one its own. All other folders are read-only, so hosts have no place to share files,
unless a folder ``shared`` was made next to the disks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NAMESPACES = ("--mount", "--net", "--pid", "--uts")
_CABLE = "cable0"
_WAIT_SECONDS = 20
# In the order of its arguments: the folder of all disks, its own disk, where it sees it, its name.
_BOOT = """
set -e
mount --make-rprivate /
mount --bind "$1/hosts" /etc/hosts
mount --bind "$2" "$3"
for disk in "$1"/*_disk; do mount -t tmpfs -o ro tmpfs "$disk"; done
if [ -d "$1/shared" ]; then mount --bind "$1/shared" "$1/shared"; fi
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /dev/shm
mount -t proc proc /proc
hostname "$4"
ip link set lo up
touch "$3/booted"
exec sleep infinity
"""


class Host:
    """A host that can be booted, killed and booted again; its disk stays.

    Args:
        base: Folder of all disks.
        name: Name of the host.
        address: Its address.

    Attributes:
        disk: The disk as seen from outside.
        own: The disk as the host sees it.
        work: The folder that commands run in, as seen from outside.
        is_on: Whether the host runs.
    """

    def __init__(self, base: Path, name: str, address: str) -> None:
        self.name, self.address, self._base = name, address, base
        self.disk, self.own = base / f"{name}_disk", base / "disk"
        self.work = self.disk / "work"
        self.is_on = False
        self._commands: list[subprocess.Popen[bytes]] = []
        for folder in (self.own, self.work, self.disk / "home", self.disk / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)

    def boot(self) -> None:
        """Start the host, without a network."""
        (self.disk / "booted").unlink(missing_ok=True)
        command = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "sh", "-c", _BOOT, "sh"]
        arguments = [str(self._base), str(self.disk), str(self.own), self.name]
        process = subprocess.Popen([*command, *arguments])
        self._commands.append(process)
        deadline = time.monotonic() + _WAIT_SECONDS
        while not (self.disk / "booted").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"{self.name} does not start")
            time.sleep(0.02)
        # The only child of `unshare` is the first process of the host.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("utf-8")
        self.pid, self.is_on = int(children), True
        # With the last process the network would go, and with it the address of the host at the other end.
        self._network = Path(f"/proc/{self.pid}/ns/net").open("rb")  # noqa: SIM115 - closed by unplug

    def kill(self, *, silently: bool = False) -> None:
        """End all processes of the host at once; the other host sees their connections close.

        Args:
            silently: Cut the cable first, so that the other host sees nothing, as when the power fails.
        """
        if silently:
            self.network("ip", "link", "set", _CABLE, "down")
        os.kill(self.pid, signal.SIGKILL)
        for command in self._commands:
            command.wait()
        self._commands, self.is_on = [], False

    def unplug(self) -> None:
        """Give up the network of a killed host."""
        self._network.close()

    def start(self, command: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command in the host; it prints to ``output.txt`` in its folder."""
        own = {"HOME": str(self.own / "home"), "TMPDIR": str(self.own / "tmp"), "OMP_NUM_THREADS": "1"}
        # Nothing of this machine's user: no cache, no data folder, no proxy.
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        with (self.work / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                ["nsenter", f"--target={self.pid}", *_NAMESPACES, f"--wdns={self.own / 'work'}", *command],
                env=kept | own | {"PYTHONPATH": str(ROOT)} | env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._commands.append(process)
        return process

    def network(self, *command: str, check: bool = True) -> None:
        """Run a command on the network of the host, such as ``ip`` or ``tc``."""
        inside = ["nsenter", f"--target={self.pid}", "--net", *command]
        done = subprocess.run(inside, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(command)}: {done.stderr}")

    @property
    def output(self) -> str:
        """All that commands of this host have printed."""
        return (self.work / "output.txt").read_text("utf-8", errors="replace")


def connect(one: Host, other: Host) -> None:
    """Connect two hosts by a virtual cable."""
    one.network("ip", "link", "delete", _CABLE, check=False)  # one that led to a killed host
    peer = ["peer", "name", _CABLE, "netns", str(other.pid)]
    one.network("ip", "link", "add", _CABLE, "type", "veth", *peer)
    for host in (one, other):
        host.network("ip", "address", "add", f"{host.address}/24", "dev", _CABLE)
        host.network("ip", "link", "set", _CABLE, "up")


def limit_bandwidth(host: Host, megabits: int | None) -> None:
    """Limit what a host sends to a number of megabits per second; ``None`` takes the limit away."""
    host.network("tc", "qdisc", "delete", "dev", _CABLE, "root", check=False)
    if megabits is not None:
        limit = ["rate", f"{megabits}mbit", "burst", "64kb", "latency", "200ms"]
        host.network("tc", "qdisc", "add", "dev", _CABLE, "root", "tbf", *limit)


def why_impossible() -> str | None:
    """Return why hosts cannot be made on this machine; ``None`` if they can."""
    if sys.platform != "linux":
        return "namespaces exist on Linux only"
    if missing := [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]:
        return f"needs the programs {', '.join(missing)} (iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False
    )
    return (
        f"namespaces cannot be made, which needs root: {tried.stderr.strip()}" if tried.returncode else None
    )


@contextmanager
def two_hosts(base: Path) -> Iterator[tuple[Host, Host]]:
    """Make two connected hosts, ``host0`` and ``host1``, with disks below ``base``."""
    hosts = Host(base, "host0", "10.77.0.1"), Host(base, "host1", "10.77.0.2")
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    (base / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        for host in hosts:
            host.boot()
        connect(*hosts)
        yield hosts
    finally:
        for host in hosts:
            if host.is_on:
                host.kill()
                host.unplug()
