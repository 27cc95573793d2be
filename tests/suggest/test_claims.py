"""``suggest`` says no more than its intervals show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.cli import main


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(5)
    columns = {f"x{number}": rng.normal(size=600) for number in range(20)}
    frame = pd.DataFrame(columns | {"hired": rng.integers(0, 2, 600)})
    frame["SEX"] = np.where(0.17 * frame["x0"] + rng.normal(size=600) > 0, "f", "m")
    frame.to_csv("people.csv", index=False)
    return frame


def suggest(capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, tuple[float, float, str]]]:
    data = ["--data", "table", "--data.path", "people.csv", "--data.target", "hired", "--data.drop", "[SEX]"]
    main(["suggest", *data, "--audit-sample", "people.csv", "--sensitive", "SEX"])
    printed = capsys.readouterr().out
    pattern = r"│ (x\d+) +│ [\d.]+ \(([\d.]+) to ([\d.]+)\) │.*│ ([\w :?,]+?) +│\n"
    found = {name: (float(low), float(high), says) for name, low, high, says in re.findall(pattern, printed)}
    return printed, found


def test_nothing_proposed_is_no_claim_that_nothing_is_related(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    table["SEX"] = np.resize(["f", "m"], 600)
    table.to_csv("people.csv", index=False)
    printed, found = suggest(capsys)
    assert "cannot act" not in printed
    largest = max(found, key=lambda name: found[name][1])
    assert (
        "No column is proposed from these 600 rows. That is not evidence that none is related to SEX: by the "
        f"intervals an association of up to {found[largest][1]:.2f} ({largest}) is possible."
    ) in printed


def test_an_interval_that_leaves_out_0_is_not_called_chance(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    del table
    printed, found = suggest(capsys)
    assert len(found) == 20
    apart = {name: says for name, (low, _, says) in found.items() if low > 0}
    assert "no: unclear" in apart.values(), "the data were chosen to have one"
    assert "no: chance?" not in apart.values()
    for name, says in apart.items():
        if says == "no: unclear":
            assert re.search(rf"'unclear': .*\b{name}\b.*it is one of 20", printed)
