"""Projects of the package index, each in an environment of its own; run with ``pytest -m foreign``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.foreign


# A folder of environments that are kept and used again, by the name of the script; a new one when not set.
KEPT = os.environ.get("FAIRRF_FOREIGN")


def run(packages: list[str], script: str, folder: Path) -> str:
    """Install this package and others into an environment, and run a script there."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    torch = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    subprocess.run([python, "-m", "pip", "install", "-q", torch, *packages, str(ROOT)], check=True)
    done = subprocess.run(
        [python, "-m", f"tests.foreign.{script}"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("packages", "script"),
    [
        pytest.param(["transformers", "accelerate"], "hugging_face", id="transformers"),
        pytest.param(["pytorch-tabular"], "tabular", id="pytorch-tabular"),
        pytest.param(["chemprop"], "molecules", id="chemprop"),
        pytest.param(["deeptab"], "deep_tables", id="deeptab"),
        pytest.param(["lightly"], "images", id="lightly"),
    ],
)
def test_the_covariance_falls(packages: list[str], script: str, tmp_path: Path) -> None:
    printed = run(packages, script, (Path(KEPT) if KEPT else tmp_path) / script)
    before, after, *by_hand = (float(value) for value in re.findall(r"covariance ([0-9.]+)", printed))
    assert after < 0.25 * before
    assert by_hand == pytest.approx([after] * len(by_hand), abs=0.001)
    accuracies = [float(value) for value in re.findall(r"accuracy ([0-9.]+)", printed)]
    assert accuracies[1] > accuracies[0] - 0.15
