"""A rank without validation rows joins in the sums of the others, in every precision."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("validate_without_rows.py")


def test_metrics_equal_those_of_one_process(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "metrics.pt")]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=300)
    found = torch.load(tmp_path / "metrics.pt", weights_only=True)
    assert set(found) == {"64-true", "bf16-true"}
    for one, three in found.values():
        assert three["val_penalty"] > 0
        assert three == pytest.approx(one, nan_ok=True)
