"""The quickstart and each example run as they stand, and show what they say."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROJECT = EXAMPLES / "cli_project"
DROP_IN = (ROOT / "docs" / "dropin.md").read_text(encoding="utf-8")
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")


@cache
def run(command: str, folder: Path = EXAMPLES) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, *shlex.split(command)]
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr if done.returncode else ''}"


def numbers(output: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"{name} ([0-9.]+)", output)]


def test_after_is_before_plus_two_callbacks_and_their_imports() -> None:
    before, after = (
        (EXAMPLES / f"tabular_{when}.py").read_text(encoding="utf-8").splitlines()
        for when in ("before", "after")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert all(line.startswith("+ ") for line in changed), "nothing is taken out or changed"
    added = [line[2:].strip() for line in changed if line[2:].strip()]
    imports = [line for line in added if line.startswith("from fairrf_lightning")]
    calls = [line for line in added if line not in imports]
    assert len(imports) == 2
    assert [call.split("(")[0] for call in calls] == ["PretrainCallback", "LambdaUpdateCallback"]


def test_tabular_gap_falls() -> None:
    before, after = run("tabular_before.py"), run("tabular_after.py")
    (gap_before,), (gap_after,) = (numbers(output, "parity gap") for output in (before, after))
    assert gap_after < 0.6 * gap_before
    assert numbers(after, "accuracy")[0] > numbers(before, "accuracy")[0] - 0.02
    shown = re.findall(r"accuracy [0-9.]+, demographic parity gap [0-9.]+", README)
    for output in (before, after):
        assert output.splitlines()[1] in shown, "the README shows what the script prints"


def test_image_gap_falls() -> None:
    output = run("images.py")
    without, attached = numbers(output, "parity gap")
    assert attached < 0.7 * without
    accuracies = numbers(output, "accuracy")
    assert accuracies[1] > accuracies[0] - 0.06


def test_cli_project_takes_the_presets_from_its_readme_command() -> None:
    commands = re.findall(r"^python (main\.py (?:.*\\\n)*.*)", README, flags=re.MULTILINE)
    plain, fair = (run(command.replace("\\\n", " "), PROJECT) for command in commands)
    assert "exit code 0" in plain
    assert "lambda/" not in plain
    assert "exit code 0" in fair
    assert len(numbers(fair, "lambda/age")) == len(numbers(fair, "train_penalty")) == 1
    assert numbers(fair, "lambda/age")[0] + numbers(fair, "lambda/children")[0] == pytest.approx(1, abs=2e-3)


def test_the_preset_asks_for_the_related_columns() -> None:
    output = run(
        "main.py fit --config config.yaml --trainer.callbacks+=../../callbacks/drop_in.yaml", PROJECT
    )
    assert "exit code 2" in output
    assert "related" in output


@pytest.mark.filterwarnings("ignore:.*validation_step.*", "ignore:.*tensorboardX.*")
def test_the_quickstart_updates_lambda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DROP_IN, flags=re.DOTALL)
    (block,) = [block for block in blocks if "FairRFModule(" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block, "docs/dropin.md", "exec"), names)  # noqa: S102 - this is the point
    penalty = names["module"].penalty
    assert penalty.updates > 1
    assert penalty.weights.tolist() != [0.5, 0.5]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_foreign_module_is_penalised_on_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "survey.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    gaps = []
    for eta in ("0.0", "0.3"):
        names: dict[str, Any] = {}
        torch.manual_seed(0)
        exec(compile(block.replace("eta=0.3", f"eta={eta}"), "survey.md", "exec"), names)  # noqa: S102 - this is the point
        rows = next(iter(names["data"].rows_of("test")))
        with torch.no_grad():
            probs = names["module"].head(rows["inputs"]).sigmoid().squeeze(1)
        gaps.append(abs(float(torch.cov(torch.stack([probs, rows["related"][:, 0]]))[0, 1])))
    assert gaps[1] < 0.8 * gaps[0]
