"""The attached penalty on two real processes trains the weights of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.dropin.fit_on_ranks import Result, train_all

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["plain", "own forward", "manual", "accumulation", "double", "fsdp"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("ranks")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command = [sys.executable, *launcher, "tests.dropin.fit_on_ranks", str(folder / "two.pt")]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: dict[str, Result] = torch.load(folder / "two.pt", weights_only=True)
    return found


@pytest.fixture(scope="module")
def one() -> dict[str, Result]:
    return train_all(1)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one_process(kind: str, one: dict[str, Result], two: dict[str, Result]) -> None:
    assert not torch.allclose(one[kind]["lambda"], torch.full((3,), 1 / 3), atol=0.01)
    for name, value in one[kind].items():
        torch.testing.assert_close(two[kind][name], value, rtol=0, atol=1e-6)


def test_two_ranks_train_as_by_hand(two: dict[str, Result]) -> None:
    for name, value in two["by hand"].items():
        torch.testing.assert_close(two["plain"][name], value, rtol=0, atol=1e-6)
