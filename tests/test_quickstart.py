"""The quickstart of the README does what it shows."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings(
    "ignore:.*validation_step.*", "ignore:.*logging interval.*", "ignore:.*tensorboardX.*"
)
def test_the_quickstart_updates_lambda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (block,) = [block for block in blocks if "FairRFModule(" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - this is the point
    penalty = names["module"].penalty
    assert penalty.updates > 1
    assert penalty.weights.tolist() != [0.5, 0.5]
