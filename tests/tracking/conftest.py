"""W&B in tests: a machine without an account, and a server on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import wandb

from tests.tracking.wandb_server import Server, serve


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as state:
        yield state


@pytest.fixture
def online(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that this process has a key for."""
    set_environment(monkeypatch, server.environment())
    return server


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no settings, and no run of another test in this process."""
    forget_account(tmp_path, monkeypatch)
    yield
    finish()


def finish() -> None:
    """End the run of this process, as its exit would."""
    wandb.finish()
    wandb.teardown()


def forget_account(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish()
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_CONSOLE", "off")  # pytest captures the output already
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "20")  # a test that failed leaves a run without a server
