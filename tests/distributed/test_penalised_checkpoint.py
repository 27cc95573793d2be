"""All ranks keep the same checkpoint, whatever each of them logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("keep_by_own_shares.py")
ROOT = Path(__file__).parents[2]


def test_ranks_with_other_shares_keep_one_checkpoint(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,  # ranks that disagree wait for each other for half an hour
    )
    assert done.returncode == 0, done.stderr
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["fairest.ckpt"]
