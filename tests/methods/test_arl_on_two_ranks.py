import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

SCRIPT = Path(__file__).with_name("fit_arl.py")


def learned(folder: Path, devices: int) -> dict[str, Tensor]:
    out = folder / f"{devices}.pt"
    command = [sys.executable, str(SCRIPT), f"--devices={devices}", f"--out={out}"]
    subprocess.run(command, check=True, cwd=folder, timeout=300)
    result: dict[str, Tensor] = torch.load(out, weights_only=True)
    return result


def test_two_ranks_train_as_one_process_with_twice_the_batch(tmp_path: Path) -> None:
    one, two = learned(tmp_path, 1), learned(tmp_path, 2)
    assert float(one["coefficients"].abs().max()) > 0.1
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-6)
