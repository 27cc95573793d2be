"""Two real processes give the answer of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.fit_fifty_steps import Result, train_all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def one() -> dict[str, Result]:
    return train_all(1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    path = tmp_path_factory.mktemp("ddp") / "two.pt"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command = [sys.executable, *launcher, "tests.distributed.fit_fifty_steps", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: dict[str, Result] = torch.load(path, weights_only=True)
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("precision", "given", "tolerance"),
    [
        ("64-true", "all", 1e-6),
        ("64-true", "positives", 1e-6),
        ("32-true", "all", 1e-5),
        ("bf16-mixed", "all", 1e-2),
    ],
)
def test_two_ranks_train_as_one_process_with_twice_the_batch(
    one: dict[str, Result], two: dict[str, Result], precision: str, given: str, tolerance: float
) -> None:
    _same_training(one[f"{precision} {given}"], two[f"{precision} {given}"], tolerance)
    if precision == "64-true":
        _same_metrics(one[f"{precision} {given}"], two[f"{precision} {given}"])


def _same_training(one: Result, two: Result, tolerance: float) -> None:
    assert distance(one["weights"], two["weights"]) < tolerance
    torch.testing.assert_close(one["lambda"], two["lambda"], rtol=0, atol=tolerance)
    assert one["lambda"].dtype == torch.float32
    assert not torch.allclose(one["lambda"], torch.full((3,), 1 / 3)), "lambda was never updated"


def _same_metrics(one: Result, two: Result) -> None:
    # An odd number of rows: a sampler that pads would change every one of these.
    assert one["rows"] % 2 == 1
    counted = ("_gap", "_acc", "_share")
    exact = [name for name in one["metrics"] if any(part in name for part in counted)]
    assert len(exact) == 14
    assert {name: one["metrics"][name] for name in exact} == {name: two["metrics"][name] for name in exact}
    assert one["metrics"]["test_objective"] == pytest.approx(two["metrics"]["test_objective"], abs=1e-6)


def test_bf16_mixed_trains_like_fp32_within_its_precision(one: dict[str, Result]) -> None:
    full, mixed = one["32-true all"], one["bf16-mixed all"]
    assert distance(full["weights"], mixed["weights"]) < 2e-2
    torch.testing.assert_close(full["lambda"], mixed["lambda"], rtol=0, atol=1e-2)
    for name in ("test_acc", "test_dp_gap", "test_objective"):
        assert full["metrics"][name] == pytest.approx(mixed["metrics"][name], abs=1e-2)
