"""Checkpoints with random changes: each is loaded, or refused by a clear error."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reliability.outcome import SHORT, WHOLE_COMMANDS, outcome

DATA = ["--data=synthetic", "--data.n_rows=300", "--data.batch_size=60"]
COMMANDS = ("test", "predict", "validate", "fit", "audit")
Path_ = tuple[Any, ...]
REMOVED = "(removed)"
# fmt: off
VALUES: list[Any] = [
    REMOVED, None, "", "text", 0, -1, 10**12, 1.5, float("nan"), True, b"bytes",
    [], ["a"], (), {}, {"a": 1}, {1: 2},
    torch.zeros(()), torch.zeros(0), torch.zeros(3, 5), torch.tensor([float("nan")]),
]
# fmt: on


@functools.cache
def checkpoint() -> dict[str, Any]:
    """Return the checkpoint of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        assert not outcome(["fit", *DATA, *SHORT], Path(folder))
        path = next(Path(folder).rglob("last.ckpt"))
        content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def _places(value: Any, depth: int = 0) -> Iterator[Path_]:
    """Yield the paths of all parts down to a depth, the whole first."""
    yield ()
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children if depth < 4 else ():
        for rest in _places(child, depth + 1):
            yield (key, *rest)


@functools.cache
def places() -> list[Path_]:
    return list(_places(checkpoint()))


def _changed(place: Path_, value: Any) -> Any:
    if not place:
        return value
    content = copy.deepcopy(checkpoint())
    parent: Any = content
    for key in place[:-1]:
        parent = parent[key]
    if isinstance(value, str) and value == REMOVED:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return content


def _run(command: str, content: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.ckpt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        quiet = [] if command == "audit" else SHORT
        more = ["--trainer.max_epochs=2"] if command == "fit" else []
        return outcome([command, *DATA, f"--ckpt_path={path}", *quiet, *more], Path(folder))


def _file() -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(checkpoint(), file.name)
        return Path(file.name).read_bytes()


def test_unchanged_checkpoint_works() -> None:
    for command in COMMANDS:
        assert _run(command, checkpoint()) == ""


CHANGES = st.tuples(st.integers(0, 10**6), st.sampled_from(VALUES))


def _check_changed(change: tuple[int, Any], command: str) -> None:
    number, value = change
    _run(command, _changed(places()[number % len(places())], value))


@pytest.mark.parametrize("state", [(), {"a": 1}])
def test_a_state_that_the_optimiser_cannot_use_is_refused(state: Any) -> None:
    changed = _changed(("optimizer_states", 0, "state", 0), state)
    assert "the checkpoint does not fit this model and data" in _run("fit", changed)


@given(change=CHANGES, command=st.sampled_from(COMMANDS))
@settings(max_examples=12, derandomize=True, **WHOLE_COMMANDS)
def test_changed_state_is_loaded_or_refused(change: tuple[int, Any], command: str) -> None:
    _check_changed(change, command)


@pytest.mark.slow
@given(change=CHANGES, command=st.sampled_from(COMMANDS))
@settings(max_examples=400, **WHOLE_COMMANDS)
def test_many_changed_states_are_loaded_or_refused(change: tuple[int, Any], command: str) -> None:
    _check_changed(change, command)


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), length=st.floats(0, 1))
@settings(max_examples=5, derandomize=True, **WHOLE_COMMANDS)
def test_damaged_file_is_refused(position: float, bit: int, length: float) -> None:
    content = bytearray(_file())
    assert _run("test", bytes(content[: int(length * (len(content) - 1))])), "a part of a file was loaded"
    content[int(position * len(content))] ^= 1 << bit
    _run("test", bytes(content))
