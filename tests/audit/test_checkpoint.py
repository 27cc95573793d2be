from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning.audit.checkpoint import evaluate_checkpoint
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import DemographicParityGap

CLI: TypeAlias = Callable[[str], None]
LAST = "lightning_logs/version_0/checkpoints/last.ckpt"
QUICK = "--trainer.max_epochs=1 --trainer.accelerator=cpu"


def printed_gap(text: str) -> float:
    line = next(line for line in text.splitlines() if "dDP" in line)
    return float(line.split("│")[2])


@pytest.mark.parametrize("method", ["fairrf", "arl", "remove_r", "ksmote"])
def test_the_rows_are_those_that_test_measures(
    method: str, cli: CLI, capsys: pytest.CaptureFixture[str]
) -> None:
    cli(f"fit {QUICK} --data compas --data.seed 3 --method {method}")
    capsys.readouterr()
    cli(f"test --ckpt_path {LAST} --data compas")
    rows = evaluate_checkpoint(["--ckpt_path", LAST, "--data", "compas"])
    metric = DemographicParityGap(len(rows.group_names))
    metric.update(rows.probabilities, rows.target, rows.groups)
    assert metric.compute().item() == pytest.approx(printed_gap(capsys.readouterr().out), abs=1e-4)
    assert len(rows.probabilities) == len(rows.target) == len(rows.inputs) == len(rows.rows) == 1852
    assert rows.inputs.shape[1] == len(rows.feature_names)
    assert all(max(columns) < rows.related_matrix.shape[1] for columns in rows.related_columns.values())
    assert rows.data_name == "compas"


def test_original_values_of_attributes_belong_to_the_rows(cli: CLI) -> None:
    cli(f"fit {QUICK} --data compas")
    options = ["--ckpt_path", LAST, "--data", "compas"]
    rows = evaluate_checkpoint(options, "val", ["race", "sex"])
    names = np.array([*rows.group_names, "other"])
    known = rows.groups.numpy() >= 0
    assert (names[rows.groups.numpy()][known] == rows.attributes["race"].to_numpy()[known]).all()
    assert set(rows.attributes["race"][~known]) == {"Hispanic", "Other", "Asian", "Native American"}
    male = rows.inputs[:, rows.feature_names.index("sex=Male")].numpy() == 1
    assert (male == (rows.attributes["sex"] == "Male").to_numpy()).all()
    train = evaluate_checkpoint(options, "train")
    assert not set(train.rows.tolist()) & set(rows.rows.tolist())
    assert list(train.attributes) == ["race"]
    with pytest.raises(InputError, match="no such split"):
        evaluate_checkpoint(options, "tset")
    with pytest.raises(InputError, match="no column 'sx'; did you mean 'sex'"):
        evaluate_checkpoint(options, attributes=["sx"])


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Return the lines that Lightning's loggers let pass, from INFO on."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels, listener = [logger.level for logger in loggers], Listener()
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(listener)
    yield lines
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
        logger.removeHandler(listener)


def test_no_trainer_is_announced_that_does_not_run(cli: CLI, heard: list[str]) -> None:
    data = "--data synthetic --data.n_rows 500"
    cli(f"fit {QUICK} {data}")
    heard.clear()
    main(["audit", *data.split(), "--ckpt_path", LAST, "--against", LAST])
    assert heard == ["Data: split (seed 0) and encoding are those of the checkpoint."]
    cli(f"test {data} --ckpt_path {LAST}")
    assert any("GPU available" in line for line in heard), "elsewhere Lightning speaks as before"


def write_table(path: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m"], 400)
    table = pd.DataFrame(
        {
            "y": rng.integers(0, 2, 400),
            "x": rng.normal(size=400) + (sex == "f"),
            "sex": np.where(np.arange(400) % 10 == 0, "", sex),
            "town": rng.choice(["north", "south"], 400),
        }
    )
    table.loc[5, "y"] = np.nan
    table.to_csv(path, index=False)
    return table


def test_a_table_of_the_users_with_a_column_left_out_of_the_inputs(cli: CLI) -> None:
    table = write_table(Path("t.csv")).drop(index=5).reset_index(drop=True)
    columns = "--data.target y --data.sensitive sex --data.related [x] --data.drop [town]"
    cli(f"fit {QUICK} --data table --data.path t.csv {columns}")
    options = ["--ckpt_path", LAST, "--data", "table", "--data.path", "t.csv"]
    rows = evaluate_checkpoint(options, attributes=["town", "sex"])
    expected = table.iloc[rows.rows.numpy()]
    assert (rows.attributes["town"].to_numpy() == expected["town"].to_numpy()).all()
    assert (rows.attributes["sex"].isna().to_numpy() == (expected["sex"] == "").to_numpy()).all()
    assert (rows.target.numpy() == expected["y"].to_numpy()).all()
    assert "town" not in rows.feature_names


def test_a_directory_gives_s_only(cli: CLI) -> None:
    Path("parts").mkdir()
    table = write_table(Path("t.csv"))
    table["sex"] = table["sex"].where(table["sex"] != "", None)
    table.to_parquet("parts/a.parquet")
    columns = "--data.target y --data.sensitive sex --data.related [x] --data.drop [town]"
    cli(f"fit {QUICK} --data table --data.path parts {columns}")
    options = ["--ckpt_path", LAST, "--data", "table", "--data.path", "parts"]
    rows = evaluate_checkpoint(options)
    expected = table["sex"].iloc[rows.rows.numpy()]
    assert (rows.attributes["sex"].isna().to_numpy() == expected.isna().to_numpy()).all()
    assert (rows.attributes["sex"].dropna().to_numpy() == expected.dropna().to_numpy()).all()
    with pytest.raises(InputError, match=r"not read from a directory .*--predictions"):
        evaluate_checkpoint(options, attributes=["town"])


def test_data_without_s(cli: CLI) -> None:
    write_table(Path("t.csv"))
    cli(f"fit {QUICK} --data table --data.path t.csv --data.target y --data.related [x] --data.drop [sex]")
    rows = evaluate_checkpoint(["--ckpt_path", LAST, "--data", "table", "--data.path", "t.csv"])
    assert rows.group_names == []
    assert torch.equal(rows.groups, torch.full((len(rows.target),), -1))
    assert rows.attributes.shape == (len(rows.target), 0)
