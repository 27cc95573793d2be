"""Defects that a first use at 80 columns showed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.cli import main
from tests.conftest import Cli, Printed, Refused

ALMOST = "almost every decision is the same"


def test_a_model_with_almost_only_one_decision_ends_with_a_note(printed: Printed) -> None:
    shown = printed("fit --data synthetic --model.eta 50 --trainer.max_epochs 8")
    record = json.loads(Path("lightning_logs/version_0/run.json").read_text(encoding="utf-8"))
    metrics = pd.read_csv("lightning_logs/version_0/metrics.csv")
    share = metrics["test_positive_share"].dropna().iloc[-1]
    assert 0 < share < 0.01  # not constant, or this test shows nothing
    assert f"note: {ALMOST}" in shown.partition("Next:")[0]
    assert [line.startswith(ALMOST) for line in record["notices"]] == [True]
    main(["report", "lightning_logs/version_0"])
    card = Path("lightning_logs/version_0/model_card.md").read_text(encoding="utf-8")
    assert card.casefold().count(ALMOST) == 1


def test_a_grid_names_the_columns_that_only_some_seeds_have(refused: Refused) -> None:
    draw = np.random.default_rng(1)
    home = draw.choice(["own", "rent", "free"], 60, p=[0.7, 0.15, 0.15])
    columns = {"age": draw.integers(20, 60, 60), "home": home, "good": draw.integers(0, 2, 60)}
    pd.DataFrame(columns).to_csv("tiny.csv", index=False)
    options = "--data table --data.path tiny.csv --data.target good --data.related [age] --eta 0.3 --seeds 6"
    message = refused(f"grid {options}")
    assert "home=" in message
    assert "--data.min_count" in message


def test_no_word_of_the_grid_table_is_cut_at_80_columns(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = printed("grid --data synthetic --data.n_rows 600 --epochs 6 --eta 0.3,300 --seeds 2 --plot false")
    assert "decision" in shown  # the longest word of the last column
    assert "…" not in shown


@pytest.mark.parametrize("column", ["prob", "against"])
def test_an_audit_names_a_model_with_almost_only_one_decision(column: str, printed: Printed) -> None:
    draw = np.random.default_rng(0)
    target = draw.integers(0, 2, 1000)
    flat = np.where(np.arange(1000) < 4, 0.9, 0.1)
    good = np.where(draw.random(1000) < 0.8, target, 1 - target) * 0.8 + 0.1
    columns = {"flat": flat, "good": good, "target": target, "sex": draw.choice(["f", "m"], 1000)}
    pd.DataFrame(columns).to_csv("p.csv", index=False)
    options = "--prob good --against flat" if column == "against" else "--prob flat"
    shown = printed(f"audit --predictions p.csv --groups sex {options}")
    start = f"Of the other model: {ALMOST}" if column == "against" else ALMOST.capitalize()
    assert any(line.startswith(start) for line in shown.splitlines())


def test_two_runs_with_the_same_options_are_told_apart(cli: Cli) -> None:
    for seed in ("0", "1"):
        fit = "fit --data synthetic --data.n_rows 600 --data.seed 0 --trainer.max_epochs 3"
        cli(f"{fit} --seed_everything {seed}")
    main(["report", "lightning_logs/version_0", "--against", "lightning_logs/version_1"])
    card = Path("lightning_logs/version_0/model_card.md").read_text(encoding="utf-8")
    assert "compared with FairRF, eta 0.7, beta 0.5 (version\\_1)." in card


@pytest.mark.filterwarnings("ignore:.*is not the table")
def test_a_test_on_another_table_ends_with_a_note(printed: Printed) -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"age": draw.integers(20, 60, 300), "pay": draw.normal(size=300)})
    rows["good"] = (rows["pay"] + draw.normal(size=300) > 0).astype(int)
    rows.to_csv("one.csv", index=False)
    rows[::-1].to_csv("two.csv", index=False)
    options = "--data table --data.target good --data.related [age] --data.path"
    note = "is not the table that the checkpoint was trained on"
    assert note not in printed(f"fit {options} one.csv --trainer.max_epochs 3")
    shown = printed(f"test {options} two.csv --ckpt_path lightning_logs/version_0/checkpoints/best.ckpt")
    assert any(note in line for line in shown.strip().splitlines()[-2:])


def test_only_training_adds_a_folder_of_a_run(cli: Cli) -> None:
    cli("fit --data synthetic --data.n_rows 600 --trainer.max_epochs 1")
    for command in ("predict", "test", "validate"):
        main([command, "lightning_logs/version_0"])
    assert [path.name for path in Path("lightning_logs").iterdir()] == ["version_0"]
