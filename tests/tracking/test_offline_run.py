"""A run without an account: the real client, and the file that it leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from tests.tracking.conftest import finish, forget_account
from tests.tracking.run_file import RunFile, read_run

FIT = [
    "fit",
    "--data=synthetic",
    "--data.n_rows=6000",
    "--trainer.max_epochs=4",
    "--lambda_update.every_n_steps=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
FEATURES = ["height", "income", "hours"]
GAPS = ["dp_gap", "eo_gap", "eodds_gap"]
RATES = ["selection_rate", "tpr", "fpr", "accuracy"]


class OfflineRun(NamedTuple):
    """A finished run, and what its file says."""

    directory: Path
    file: RunFile


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineRun]:
    folder = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as monkeypatch:
        forget_account(folder, monkeypatch)
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["train.py"])
        main([*FIT, "--trainer.logger=wandb", "--trainer.logger.log_model=true"])
        finish()
        (directory,) = folder.glob("wandb/offline-run-*")
        (file,) = directory.glob("run-*.wandb")
        yield OfflineRun(directory, read_run(file))


def test_history_has_lambda_penalties_gaps_with_intervals_and_group_rates(run: OfflineRun) -> None:
    names = [f"{kind}/{feature}" for kind in ("lambda", "penalty") for feature in FEATURES]
    names += [f"val_{gap}{end}" for gap in GAPS for end in ("", "_low", "_high")]
    names += [f"val_{rate}/{group}" for rate in RATES for group in "ab"]
    for name in names:
        assert len(run.file.values(name)) == 4, name
    assert [sum(row[f"lambda/{name}"] for name in FEATURES) for row in _rows(run, "lambda/height")] == [
        pytest.approx(1)
    ] * 4
    for row in _rows(run, "val_acc"):
        assert row["val_dp_gap"] == pytest.approx(
            abs(row["val_selection_rate/a"] - row["val_selection_rate/b"])
        )
        assert row["val_eo_gap"] == pytest.approx(abs(row["val_tpr/a"] - row["val_tpr/b"]))


def test_the_axis_is_the_epoch_and_the_summary_holds_the_right_value(run: OfflineRun) -> None:
    metrics, summary = run.file.metrics, run.file.summary
    for name in ["val_acc", "val_eo_gap_low", "train_loss", "lambda/height", "penalty/hours", "val_tpr/a"]:
        assert metrics[name].step_metric == "epoch", name
        assert [row["epoch"] for row in _rows(run, name)] == [0, 1, 2, 3]
    assert metrics["*"].step_metric == "trainer/global_step"  # all that others log
    assert summary["val_acc"] == {"max": max(run.file.values("val_acc"))}
    assert summary["val_loss"] == {"min": min(run.file.values("val_loss"))}
    assert summary["val_eo_gap"] == run.file.values("val_eo_gap")[-1]
    assert summary["lambda/height"] == run.file.values("lambda/height")[-1]
    assert [summary["test_acc"]] == run.file.values("test_acc")


def test_the_summary_says_what_the_chosen_checkpoint_has(run: OfflineRun) -> None:
    rows = _rows(run, "val_objective")
    best = min(rows, key=lambda row: float(row["val_objective"]))
    for name in ["epoch", "val_acc", "val_dp_gap", "val_eo_gap_low", "val_objective"]:
        assert run.file.summary[f"chosen/{name}"] == best[name]


def test_config_has_the_data_and_the_roles_of_columns(run: OfflineRun) -> None:
    config = run.file.config
    assert config["data"]["data"] == "SyntheticDataModule"
    assert config["data"]["columns"] == ["height", "income", "hours", "skill", "practice", "lottery"]
    assert config["data"]["rows"] == {"train": 3000, "val": 1200, "test": 1800}
    assert config["data"]["groups"] == ["a", "b"]
    assert config["eta"] == 0.7
    assert config["beta"] == 0.5
    assert config["seed"] == 0
    expected = {"related": FEATURES, "sensitive": "group", "sensitive_in_inputs": False, "given": "all"}
    expected |= {"sensitive_in_penalty": False, "statistic": "covariance", "every_n_steps": 2, "rule": "kkt"}
    expected |= {"pretrain": {"epochs": 1, "steps": None, "patience": None}}
    assert config["fairness"] == expected


def test_a_scatter_shows_accuracy_against_each_gap_over_the_epochs(run: OfflineRun) -> None:
    charts = run.file.config["_wandb"]["visualize"]
    for gap in GAPS:
        assert charts[f"pareto/{gap}"]["panel_config"]["fieldSettings"] == {"x": f"val_{gap}", "y": "val_acc"}
        table = _table(run, f"pareto/{gap}_table")
        assert table["epoch"].tolist() == [0, 1, 2, 3]
        assert table[f"val_{gap}"].tolist() == run.file.values(f"val_{gap}")
        chosen = table.loc[table["chosen"], "epoch"].tolist()
        assert chosen == [run.file.summary["chosen/epoch"]]
        for _, row in table.iterrows():
            better = (table[f"val_{gap}"] <= row[f"val_{gap}"]) & (table["val_acc"] >= row["val_acc"])
            better &= (table[f"val_{gap}"] < row[f"val_{gap}"]) | (table["val_acc"] > row["val_acc"])
            assert row["on_front"] == (not better.any())


def test_final_tables_and_bars(run: OfflineRun) -> None:
    summary = run.file.summary
    results = _table(run, "test/results").set_index("metric")
    assert results.iloc[0].tolist() == [summary[f"test_acc{end}"] for end in ("", "_low", "_high")]
    assert results["value"].tolist()[1:] == [summary[f"test_{gap}"] for gap in GAPS]
    features = _table(run, "test/features").set_index("feature")
    assert features["lambda"].to_dict() == {name: summary[f"test_lambda/{name}"] for name in FEATURES}
    assert features["penalty"].to_dict() == {name: summary[f"test_penalty/{name}"] for name in FEATURES}
    groups = _table(run, "test/groups")
    assert len(groups) == 2 * 4
    assert ((groups["low"] <= groups["value"]) & (groups["value"] <= groups["high"])).all()
    assert groups.loc[groups["rate"] == "Accuracy", "rows"].sum() == 1800
    for rate in RATES:
        bars = _table(run, f"test_groups/{rate}_table").set_index("group")[rate]
        assert bars.to_dict() == {group: summary[f"test_{rate}/{group}"] for group in "ab"}


def test_checkpoints_are_artifacts_on_request(run: OfflineRun) -> None:
    models = [artifact for artifact in run.file.artifacts if artifact.type == "model"]
    assert any("best" in model.aliases for model in models)
    assert all(entry.path == "model.ckpt" for model in models for entry in model.manifest.contents)


def _rows(run: OfflineRun, name: str) -> list[dict[str, Any]]:
    return [row for row in run.file.history if name in row]


def _table(run: OfflineRun, name: str) -> pd.DataFrame:
    (row,) = run.file.values(name)
    content = json.loads((run.directory / "files" / row["path"]).read_text(encoding="utf-8"))
    return pd.DataFrame(content["data"], columns=content["columns"])
