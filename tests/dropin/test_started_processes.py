"""Strategies that start processes of their own bring the learned lambda back to the main process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fit_in_started_processes.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("strategy", "fits"), [("ddp_fork", 2), pytest.param("ddp_spawn", 1, marks=pytest.mark.slow)]
)
def test_the_learned_lambda_comes_back(strategy: str, fits: int, tmp_path: Path) -> None:
    """``ddp_notebook`` is another name of ``ddp_fork``."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), strategy, str(fits)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    weights, logged, counts = (found := json.loads(done.stdout.splitlines()[-1]))[0]
    assert found == [found[0]] * fits
    assert weights == pytest.approx(logged)
    assert weights != pytest.approx([1 / 3] * 3, abs=1e-3)
    # An epoch has five steps on each rank: seven of twelve have the penalty, four of them make an update.
    assert counts == [7, 1]
