"""``correct``, ``audit --survey``, and leaving models without a gap alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule, score_files
from fairrf_lightning.load import load_run
from tests.surveys import write_survey

Run = Callable[[str], str]
ROWS = "--data.n_rows 4000 --data.seed 0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    quiet = "--trainer.enable_progress_bar=false --trainer.max_epochs 6 --trainer.default_root_dir"
    main(f"fit --data synthetic {ROWS} --method vanilla {quiet} {folder}".split())
    return next(folder.rglob("best.ckpt"))


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trained: Path
) -> Run:
    """Run a command next to a survey and a checkpoint, and return its output and errors."""
    monkeypatch.chdir(tmp_path)
    Path("best.ckpt").write_bytes(trained.read_bytes())
    write_survey(SyntheticDataModule(n_rows=4000, seed=0), 400, Path("survey.csv"))
    capsys.readouterr()

    def call(command: str) -> str:
        try:
            main(command.split())
        except SystemExit as stopped:
            assert stopped.code == 2  # noqa: PT017 - the error is compared by the test
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


def test_goal_is_reached_and_the_checkpoint_is_an_ordinary_one(run: Run) -> None:
    printed = run("correct best.ckpt --survey survey.csv --goal dp=0.10 --max_accuracy_loss 0.2")
    assert "Reached the goal: dDP 0.10" in printed
    for words in ("accuracy", "share of positive", "dDP, estimated", "dEO, estimated", "before", "after"):
        assert words in printed
    assert "corrected.ckpt --survey survey.csv" in printed
    before, after = load_run("best.ckpt"), load_run("corrected.ckpt")
    assert before.module.correction is None
    assert after.module.correction is not None
    torch.load("corrected.ckpt", weights_only=True)
    assert "accuracy" in run("test corrected.ckpt --trainer.enable_progress_bar=false --trainer.logger=false")
    run("predict corrected.ckpt --trainer.enable_progress_bar=false --trainer.logger=false")
    assert {"probability", "uncorrected_probability"} <= set(pd.read_csv("predictions.csv"))
    found = run("audit corrected.ckpt --survey survey.csv")
    assert "Gaps on 1,200 rows without S" in found
    assert "at 0.5" in run("audit corrected.ckpt --survey survey.csv --threshold 0.3")
    estimates = json.loads(Path("audit/estimates.json").read_text("utf-8"))["gaps"]
    assert estimates["dp_gap"]["low"] <= 0.13
    assert f"{estimates['dp_gap']['value']:.3f}" in printed  # the same as `correct` has printed


def test_report_is_on_the_corrected_decisions(run: Run, trained: Path) -> None:
    printed = run(f"correct {trained} --survey survey.csv --goal dp=0.10 --max_accuracy_loss 0.2")
    found = re.search(r"accuracy\D+(0\.\d{4})\D+(0\.\d{4})", printed)
    assert found is not None
    before, after = (f"{100 * float(number):.1f} %" for number in found.groups())
    assert before != after
    for name, expected in (("best", before), ("corrected", after)):
        run(f"report {trained.with_name(f'{name}.ckpt')} --out {name}")
        assert expected in Path(name, "model_card.md").read_text("utf-8")
        assert ({before, after} - {expected}).pop() not in Path(name, "model_card.md").read_text("utf-8")


def test_budget_stops_an_unreachable_goal(run: Run) -> None:
    printed = run("correct best.ckpt --survey survey.csv --goal dp=0.001 --max_accuracy_loss 0.002")
    assert "Stopped by the accuracy budget (0.002) at dDP 0." in printed


def test_published_statistics_give_a_certificate_and_no_estimate(run: Run) -> None:
    data = SyntheticDataModule(n_rows=4000, seed=0)
    table = data.read()
    member = (table[data.sensitive] == "b").to_numpy(dtype=float)
    lines = [f"  {name}: {np.corrcoef(table[name], member)[0, 1]:.3f}" for name in data.related]
    Path("proxies.yaml").write_text("\n".join(["group: b", "share: 0.5", "correlations:", *lines]), "utf-8")
    printed = run("correct best.ckpt --proxies proxies.yaml --max_accuracy_loss 0.02")
    assert "estimated (95 %)" not in printed
    bounds = re.findall(r"dDP of the 1,200 test rows is at most (0\.\d+)", printed)
    assert len(bounds) == 2
    certified = run("certify best.ckpt --proxies proxies.yaml")
    assert bounds[0] in certified
    scores = table.drop(columns=["group", "label"])
    scores["prob"] = 1 / (1 + np.exp(-scores.sum(axis=1)))
    scores.assign(target=table["label"]).to_csv("scores.csv", index=False)
    printed = run("correct --predictions scores.csv --proxies proxies.yaml --max_accuracy_loss 0.02")
    assert "before: dDP of the 1,600 test rows is at most 0." in printed
    assert "after: dDP of the 1,600 test rows is at most 0." in printed


def test_output_of_predict_has_no_columns_of_people(run: Run) -> None:
    run("predict best.ckpt --trainer.enable_progress_bar=false --trainer.logger=false")
    printed = run("correct --predictions predictions.csv --survey survey.csv --sensitive group")
    assert "give its checkpoint to `correct`, without --predictions" in printed
    assert not Path("corrected_predictions.csv").exists()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda form: form.rename(columns={"group": "grup"}), "", "no column 'group'; did you mean 'grup'"),
        (lambda form: form.drop(columns=["row", "table"]), "", "shares no column with the data"),
        (lambda form: form.assign(group="a"), "", "all 400 people have group = 'a'"),
        (lambda form: form.head(49), "", "49 people with a known 'group'; at least 50 are needed"),
        (lambda form: form, "--group c", "--group c: no such value of group in survey.csv"),
        (lambda form: form, "--goal xy=0.1", "--goal xy=0.1: expected dp=0.10 or eo=0.05"),
        (lambda form: form, "--proxies proxies.yaml", "give one of --survey, --proxies and --column"),
        (lambda form: form, "--out best.ckpt", "this is the uncorrected file, which is kept"),
    ],
)
def test_error_writes_nothing(
    run: Run, change: Callable[[pd.DataFrame], pd.DataFrame], options: str, message: str
) -> None:
    change(pd.read_csv("survey.csv")).to_csv("survey.csv", index=False)
    files = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert message in run(f"correct best.ckpt --survey survey.csv {options}")
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == files


def test_correlations_that_no_s_can_have(run: Run) -> None:
    names = SyntheticDataModule(n_rows=4000, seed=0).related
    text = "share: 0.5\ncorrelations:\n" + "".join(f"  {name}: 0.95\n" for name in names)
    Path("proxies.yaml").write_text(text, encoding="utf-8")
    assert "no S can have them" in run("correct best.ckpt --proxies proxies.yaml")
    assert not Path("corrected.ckpt").exists()


def test_a_model_without_a_gap_is_left_alone(run: Run) -> None:
    form = pd.read_csv("survey.csv")
    rng = np.random.default_rng(0)
    form.assign(group=rng.choice(["a", "b"], len(form))).to_csv("survey.csv", index=False)
    printed = run("correct best.ckpt --survey survey.csv")
    assert "No gap detected: nothing was changed" in printed
    assert not Path("corrected.ckpt").exists()
    for command in ("grid", "sweep"):
        options = f"--data synthetic {ROWS} --data.membership survey.csv --plot false --seeds 1"
        printed = run(f"{command} {options}")
        assert "No gap detected: nothing was changed" in printed
        assert not Path(f"{command}_synthetic").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_of_any_model_are_corrected_in_batches(
    run: Run, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_files, "_BATCH_ROWS", 700)
    table = SyntheticDataModule(n_rows=4000, seed=0).read()
    table["prob"] = 1 / (1 + np.exp(-table.drop(columns=["group", "label"]).sum(axis=1)))
    table.sample(300, random_state=0).to_csv("asked.csv", index=False)
    scores = table.drop(columns="group").assign(name=[f"n{number}" for number in range(4000)])
    scores["label"] = scores["label"].astype("Int64").where(scores.index > 9)  # not all labels are known
    if suffix == "csv":
        scores.to_csv("scores.csv", index=False)
    else:
        scores.to_parquet("scores.parquet")
    options = "--survey asked.csv --target label --max_accuracy_loss 0.05"
    printed = run(f"correct --predictions scores.{suffix} {options}")
    assert f"Wrote corrected_scores.{suffix}: 4,000 rows" in printed
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    found = read(f"corrected_scores.{suffix}")
    assert found["name"].tolist() == scores["name"].tolist()
    decided = found["corrected_decision"] == 1
    assert (decided == (found["corrected_probability"] >= 0.5)).all()
    member = (table["group"] == "b").to_numpy()
    gaps = [
        abs(chosen[member].mean() - chosen[~member].mean())
        for chosen in ((scores["prob"] >= 0.5).to_numpy(), decided.to_numpy())
    ]
    assert gaps[1] < 0.7 * gaps[0]


def test_s_in_the_scores_is_not_used_to_decide(run: Run) -> None:
    table = SyntheticDataModule(n_rows=4000, seed=0).read()
    table["prob"] = 1 / (1 + np.exp(-table.drop(columns=["group", "label"]).sum(axis=1)))
    table.head(300).to_csv("asked.csv", index=False)
    found = []
    for scores in (table, table.drop(columns="group")):
        scores.to_csv("scores.csv", index=False)
        run("correct --predictions scores.csv --survey asked.csv --target label --sensitive group")
        found.append(pd.read_csv("corrected_scores.csv")["corrected_decision"].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--survey asked.csv --columns height,group --sensitive group", "--columns group: this is S"),
        ("--survey asked.csv --prob no", "--prob: there is no column 'no'"),
        ("--survey asked.csv --target no", "--target: there is no column 'no'"),
        ("--survey survey.csv", "it shares no column with survey.csv"),
        ("--survey no.csv", "no.csv: there is no such file"),
    ],
)
def test_scores_that_cannot_be_corrected(run: Run, options: str, message: str) -> None:
    table = SyntheticDataModule(n_rows=4000, seed=0).read()
    table.head(300).to_csv("asked.csv", index=False)
    table.drop(columns="group").assign(prob=0.5, target=1).to_csv("scores.csv", index=False)
    assert message in run(f"correct --predictions scores.csv {options}")
    assert not Path("corrected_scores.csv").exists()
