"""A real PostgreSQL server on loopback, for tests."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest


def _programs() -> Path:
    """Return the folder of the server's programs, which Debian keeps out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    return folders[-1]


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server with a data folder of its own, and yield its address."""
    pytest.importorskip("psycopg", reason="needs fairrf-lightning[postgres]")
    programs, folder = _programs(), Path(mkdtemp())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root
    if user:
        shutil.chown(folder, user)

    def run(program: str, *options: str) -> None:
        command = [str(programs / program), "-D", str(folder / "data"), *options]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--username", "fairrf", "--auth", "trust")
    run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", f"-p {port} -h 127.0.0.1 -k {folder}")
    try:
        yield f"postgresql+psycopg://fairrf@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "stop", "-m", "immediate")
        shutil.rmtree(folder)
