"""Two real processes give the answer of one."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

Run = Callable[..., dict[str, Any]]
SCRIPT = Path(__file__).with_name("fit_fifty_steps.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what trains by a script of its own, each combination once."""
    return cache(partial(_run, tmp_path_factory.mktemp("ddp")))


def _run(folder: Path, devices: int, precision: str, given: str = "all") -> dict[str, Any]:
    out = folder / f"{devices}-{precision}-{given}.pt"
    options = {"devices": devices, "precision": precision, "given": given, "out": out}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    subprocess.run([sys.executable, str(SCRIPT), *arguments], check=True, cwd=folder, timeout=300)
    result: dict[str, Any] = torch.load(out, weights_only=True)
    assert result["world_size"] == devices
    return result


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
    run: Run, precision: str, given: str, tolerance: float
) -> None:
    one, two = (run(devices, precision, given) for devices in (1, 2))
    assert distance(one["weights"], two["weights"]) < tolerance
    torch.testing.assert_close(one["lambda"], two["lambda"], rtol=0, atol=tolerance)
    assert one["lambda"].dtype == torch.float32
    assert not torch.allclose(one["lambda"], torch.full((3,), 1 / 3)), "lambda was never updated"
    if precision == "64-true":
        # An odd number of rows: a sampler that pads would change every one of these.
        assert one["rows"] % 2 == 1
        exact = [name for name in one["metrics"] if "_gap" in name or "_acc" in name]
        assert len(exact) == 12
        assert {name: one["metrics"][name] for name in exact} == {
            name: two["metrics"][name] for name in exact
        }
        assert one["metrics"]["test_objective"] == pytest.approx(two["metrics"]["test_objective"], abs=1e-6)


def test_bf16_mixed_trains_like_fp32_within_its_precision(run: Run) -> None:
    full, mixed = run(1, "32-true", "all"), run(1, "bf16-mixed", "all")
    assert distance(full["weights"], mixed["weights"]) < 2e-2
    torch.testing.assert_close(full["lambda"], mixed["lambda"], rtol=0, atol=1e-2)
    for name in ("test_acc", "test_dp_gap", "test_objective"):
        assert full["metrics"][name] == pytest.approx(mixed["metrics"][name], abs=1e-2)
