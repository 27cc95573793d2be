"""The files of a run: ``predict`` writes what ``audit`` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks.run_files import PredictionWriter
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from tests.trainers import quiet_trainer

CLI = Callable[[str], None]
QUICK = "--trainer.max_epochs=1 --trainer.accelerator=cpu"
LAST = "lightning_logs/version_0/checkpoints/last.ckpt"


def predict(path: Path, outputs: dict[str, torch.Tensor]) -> None:
    writer, trainer = PredictionWriter(str(path)), quiet_trainer(max_epochs=1)
    writer.on_predict_batch_end(trainer, FairRFModule(), outputs)
    writer.on_predict_end(trainer, FairRFModule())


def gaps(folder: str) -> list[float]:
    grouping = json.loads(Path(folder, "audit.json").read_text())["groupings"][0]
    return [gap["value"] for gap in grouping["gaps"]]


def test_an_audit_of_predictions_is_that_of_the_checkpoint(cli: CLI) -> None:
    cli(f"fit {QUICK} --data compas")
    cli(f"predict --trainer.accelerator=cpu --data compas --ckpt_path {LAST}")
    main(["audit", LAST, "--out", "one"])
    main(["audit", "predictions.csv", "--groups", "race", "--out", "two"])
    assert gaps("one") == pytest.approx(gaps("two"), nan_ok=True)


def test_a_table_gives_what_it_has(cli: CLI) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "sex": rng.choice(["f", "m"], 200)})
    table["y"] = np.where(table["x"] > 0, "yes", "no")
    table.to_csv("t.csv", index=False)
    data = "--data table --data.target y --data.positive yes --data.related [x] --data.sensitive sex"
    cli(f"fit {QUICK} {data} --data.path t.csv")
    expected = {
        "t.csv": ["target", "sex"],
        "unlabelled.csv": ["sex"],
        "half.csv": ["sex"],
        "new.csv": [],
    }
    table.drop(columns="y").to_csv("unlabelled.csv", index=False)
    table.assign(y=table["y"].where(table.index % 2 == 0)).to_csv("half.csv", index=False)
    table[["x"]].to_csv("new.csv", index=False)
    for name, columns in expected.items():
        cli(f"predict --trainer.accelerator=cpu --data table --data.path {name} --ckpt_path {LAST}")
        found = pd.read_csv("predictions.csv")
        assert list(found) == ["row", "probability", "decision", *columns]
        if "target" in found:
            assert (found["target"] == (table["y"] == "yes")).all()
        if "sex" in found:
            assert (found["sex"] == table["sex"]).all()


def test_columns_added_to_predictions_are_not_lost(tmp_path: Path) -> None:
    path, outputs = tmp_path / "predictions.csv", {"row": torch.arange(4), "probability": torch.rand(4)}
    path.write_text("row,probability\n0,0.5\n", encoding="utf-8")
    predict(path, outputs)
    mine = pd.read_csv(path).assign(gender=["f", "m", "f", "m"])
    mine.to_csv(path, index=False)
    with pytest.raises(InputError, match="has the column 'gender', which would be lost"):
        predict(path, outputs)
    assert pd.read_csv(path).equals(mine)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="this file is no CSV file"):
        predict(path, outputs)


def test_probabilities_of_several_classes_are_columns_of_their_own(tmp_path: Path) -> None:
    outputs = {"row": torch.arange(4), "probability": torch.full((4, 3), 1 / 3)}
    predict(tmp_path / "predictions.csv", outputs)
    written = pd.read_csv(tmp_path / "predictions.csv")
    assert written.columns.tolist() == ["row", "probability_0", "probability_1", "probability_2"]
