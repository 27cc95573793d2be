"""A run is loaded by its path alone, from any folder, and predicts what ``test`` measures."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import Linear
from fairrf_lightning.cli import main
from fairrf_lightning.cli.checkpoint_options import _check_options
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.datamodules.penalty_columns import KSMOTE
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import evaluate, load_run
from fairrf_lightning.methods import ARLModule
from fairrf_lightning.metrics import DemographicParityGap
from tests.conftest import Cli, Printed, Refused
from tests.trainers import quiet_trainer

RUN = Path("lightning_logs/version_0")
LAST = RUN / "checkpoints/last.ckpt"
QUICK = "--trainer.max_epochs=1 --trainer.accelerator=cpu"
TABLE = "--data table --data.path t.csv --data.target y --data.sensitive sex --data.related [x]"
SYNTHETIC = "--data synthetic --data.n_rows 500"


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


def printed_gap(text: str) -> float:
    line = next(line for line in text.splitlines() if "dDP" in line)
    return float(line.split("│")[2])


@pytest.mark.parametrize(
    "options",
    [
        "--data compas --data.seed 3 --data.eval_batch_size 999",
        "--data compas --method arl",
        "--data compas --method remove_r",
        f"{SYNTHETIC} --method ksmote --data.ksmote.n_clusters 3",
        TABLE,
        f"{SYNTHETIC} --model.backbone my_code.Mine",
    ],
)
def test_a_run_is_loaded_from_another_folder(
    options: str, printed: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_table(Path("t.csv"))
    Path("my_code.py").write_text(
        "from fairrf_lightning.backbones import MLP\nclass Mine(MLP):\n    '''Mine.'''\n"
    )
    measured = printed_gap(printed(f"fit {QUICK} {options}"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    trust = ["my_code.Mine"] if "my_code" in options else []
    run = load_run(tmp_path / RUN, trust=trust)
    assert run.path.name == "best.ckpt"
    assert run.config["seed_everything"] == 0
    assert run.record["data"] == type(run.data).__name__
    rows = evaluate(run)
    metric = DemographicParityGap(len(rows.data.group_names))
    metric.update(rows.probabilities, rows.target, rows.groups)
    assert metric.compute().item() == pytest.approx(measured, abs=1e-4)
    assert len(rows.probabilities) == len(rows.target) == len(rows.inputs) == run.data.split_sizes["test"]
    assert rows.inputs.shape[1] == len(rows.data.feature_names)
    assert all(max(columns) < rows.related_matrix.shape[1] for columns in rows.data.related_columns.values())
    # The very probabilities that Lightning's own loop computes.
    trainer = quiet_trainer()
    predicted: Any = trainer.predict(run.module, run.data.rows_of("test"))
    assert torch.equal(torch.cat([batch["probability"] for batch in predicted]).double(), rows.probabilities)


def fit(tmp_path: Path, module: FairRFModule, **options: Any) -> Path:
    keep = ModelCheckpoint(tmp_path, filename="kept")
    trainer = quiet_trainer(max_epochs=1, callbacks=[keep], enable_checkpointing=True)
    trainer.fit(module, datamodule=SyntheticDataModule(n_rows=300, **options))
    return tmp_path / "kept.ckpt"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (FairRFModule(), {"seed": 4, "split": (0.4, 0.3, 0.3)}),
        (FairRFModule(backbone=Linear), {"ksmote": KSMOTE(n_clusters=3)}),
        (ARLModule(backbone="linear"), {"correlations": {"a": (0.5, 0.2), "b": (0.0, 0.4)}}),
    ],
)
def test_a_run_made_in_python(module: FairRFModule, options: dict[str, Any], tmp_path: Path) -> None:
    path = fit(tmp_path, module, **options)
    run = load_run(path)
    assert type(run.module) is type(module)
    assert run.config == run.record == {}
    rows = evaluate(run, "val")
    with torch.no_grad():
        expected = module.eval()(rows.inputs).sigmoid()
    torch.testing.assert_close(rows.probabilities.float(), expected)
    assert run.data.split == options.get("split", (0.5, 0.2, 0.3))
    again = SyntheticDataModule.load_from_checkpoint(path)
    assert again.n_rows == 300


def test_a_backbone_that_a_checkpoint_cannot_keep_is_given_again(tmp_path: Path) -> None:
    def backbone() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))

    path = fit(tmp_path, FairRFModule(backbone=backbone()))
    with pytest.raises(InputError, match=r"load_run\(path, module="):
        load_run(path)
    run = load_run(path, module=FairRFModule(backbone=backbone()))
    assert torch.equal(
        run.module.backbone.state_dict()["0.weight"], run.checkpoint["state_dict"]["backbone.0.weight"]
    )


def test_a_table_that_moved_is_named_again(cli: Cli) -> None:
    write_table(Path("t.csv"))
    cli(f"fit {QUICK} {TABLE} --data.drop [town]")
    before = evaluate(load_run(LAST))
    Path("t.csv").rename("moved.csv")
    with pytest.raises(InputError, match=r"t\.csv is not there any more.*--data\.path"):
        load_run(LAST)
    rows = evaluate(load_run(LAST, data_options={"path": "moved.csv"}))
    assert torch.equal(rows.probabilities, before.probabilities)
    with pytest.raises(InputError, match="no such option; did you mean 'path'"):
        load_run(LAST, data_options={"pat": "moved.csv"})


def test_options_that_the_data_keep_from_training_are_not_dropped(cli: Cli, refused: Refused) -> None:
    write_table(Path("t.csv"))
    cli(f"fit {QUICK} {TABLE} --model.lr 0.02")
    for command in (f"test --ckpt_path={LAST}", f"audit {LAST}", f"fit {QUICK} {TABLE} --ckpt_path={LAST}"):
        for option, known in (("positive 0", "1"), ("min_count 50", "5"), ("missing_values x", r"\[''")):
            message = refused(f"{command} --data.{option}")
            assert re.search(rf"--data\.\w+ \S+: the checkpoint {LAST} was trained with {known}", message)
    default = "--model.lr 0.001"
    assert "was trained with 0.02" in refused(f"fit {QUICK} {TABLE} --ckpt_path={LAST} {default}")
    for option in ("seed 5", "drop town", "split [0.1,0.1,0.8]", "categorical town"):
        assert "an evaluation keeps it" in refused(f"test --ckpt_path={LAST} --data.{option}")
    # What was given in training may be repeated, and the rest may differ.
    cli(f"test --ckpt_path={LAST} {TABLE} --data.positive 1 --data.seed 0")
    cli(f"test --ckpt_path={LAST} --data.eval_batch_size 16 --data.sensitive town")
    with pytest.raises(InputError, match=r"--data\.seed 5"):
        load_run(LAST, data_options={"seed": 5})


def test_options_that_decide_on_the_rows_are_kept_as_well(cli: Cli, refused: Refused) -> None:
    cli(f"fit {QUICK} {SYNTHETIC}")
    known = load_run(LAST).data.state_dict()["table_options"]["n_rows"]
    for command in (f"test --ckpt_path={LAST}", f"audit {LAST}"):
        assert f"was trained with {known}" in refused(f"{command} --data.n_rows 60")
    cli(f"test --ckpt_path={LAST} --data.n_rows {known}")


def test_data_are_downloaded_from_trusted_addresses_only(cli: Cli) -> None:
    write_table(Path("t.csv"))
    cli(f"fit {QUICK} {TABLE}")
    content = torch.load(LAST, weights_only=True)
    url, sha256 = "http://localhost:1/t.csv", "0" * 64
    content["datamodule_hyper_parameters"].update(path=None, url=url, sha256=sha256)
    torch.save(content, LAST)
    with pytest.raises(InputError, match=f"not the address of a preset.\n.*--trust {url}"):
        load_run(LAST)
    with pytest.raises(InputError, match=r"t\.csv"):  # the download fails
        load_run(LAST, trust=[url])


def test_errors_name_what_is_missing(cli: Cli) -> None:
    Path("people.csv").touch()
    with pytest.raises(InputError, match="a table, not a checkpoint"):
        load_run("people.csv")
    with pytest.raises(InputError, match="no such file"):
        load_run("nowhere.ckpt")
    with pytest.raises(InputError, match="not the folder of a run"):
        load_run(".")
    cli(f"fit {QUICK} {SYNTHETIC} --trainer.enable_checkpointing false")
    with pytest.raises(InputError, match="kept no checkpoint"):
        load_run(RUN)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("class_paths", {"data": "canary.Data"}, "--trust canary.Data"),
        ("class_paths", {"model": "os.system"}, "--trust os.system"),
        ("class_paths", {"model": "fairrf_lightning.backbones.MLP"}, "Checkpoints of FairRFModule"),
        ("class_paths", {"data": None}, "does not name a model and a data module"),
        ("hyper_parameters", {"backbone": {"class_path": "canary.Net"}}, "--trust canary.Net"),
        ("hyper_parameters", {"backbone": '{"class_path": "canary.Net"}'}, "--trust {"),
        ("hyper_parameters", {"optimizer": "class_path: canary.Net"}, "--trust class_path: canary.Net"),
        ("hyper_parameters", {"backbone": __file__}, f"--trust {__file__}"),
        ("hyper_parameters", {"eta": "high"}, r"options of the model cannot be used \(eta = high"),
        ("datamodule_hyper_parameters", {"related": {"class_path": "canary.Data"}}, "--trust canary.Data"),
        ("datamodule_hyper_parameters", {"ksmote": "canary.Data"}, "--trust canary.Data"),
        ("datamodule_hyper_parameters", {"ksmote": '{"class_path": "canary.Data"}'}, "--trust {"),
        ("datamodule_hyper_parameters", {"seed": -1}, "seed = -1: expected 0 or more"),
        ("datamodule_hyper_parameters", {"seed": torch.zeros(2)}, "is malformed"),
        ("SyntheticDataModule", {"encoder": {}}, "damaged"),
    ],
)
def test_a_checkpoint_is_not_trusted(part: str, change: Any, message: str, tmp_path: Path) -> None:
    path = fit(tmp_path, FairRFModule())
    content = torch.load(path, weights_only=True)
    content[part].update(change)
    torch.save(content, path)
    with pytest.raises(InputError, match=message):
        load_run(path)


def test_original_values_of_attributes_belong_to_the_rows(cli: Cli) -> None:
    cli(f"fit {QUICK} --data compas")
    run = load_run(LAST)
    rows = evaluate(run, "val", ["race", "sex"])
    names = np.array([*rows.data.group_names, "other"])
    known = rows.groups.numpy() >= 0
    assert (names[rows.groups.numpy()][known] == rows.attributes["race"].to_numpy()[known]).all()
    assert set(rows.attributes["race"][~known]) == {"Hispanic", "Other", "Asian", "Native American"}
    male = rows.inputs[:, rows.data.feature_names.index("sex=Male")].numpy() == 1
    assert (male == (rows.attributes["sex"] == "Male").to_numpy()).all()
    train = evaluate(run, "train")
    assert not set(train.rows.tolist()) & set(rows.rows.tolist())
    assert list(train.attributes) == ["race"]
    with pytest.raises(InputError, match="no such split"):
        evaluate(run, "tset")
    with pytest.raises(InputError, match="no column 'sx'; did you mean 'sex'"):
        evaluate(run, attributes=["sx"])


def test_a_table_of_the_users_with_a_column_left_out_of_the_inputs(cli: Cli) -> None:
    table = write_table(Path("t.csv")).drop(index=5).reset_index(drop=True)
    cli(f"fit {QUICK} {TABLE} --data.drop [town]")
    rows = evaluate(load_run(LAST), attributes=["town", "sex"])
    expected = table.iloc[rows.rows.numpy()]
    assert (rows.attributes["town"].to_numpy() == expected["town"].to_numpy()).all()
    assert (rows.attributes["sex"].isna().to_numpy() == (expected["sex"] == "").to_numpy()).all()
    assert (rows.target.numpy() == expected["y"].to_numpy()).all()
    assert "town" not in rows.data.feature_names


def test_a_directory_gives_s_only(cli: Cli) -> None:
    Path("parts").mkdir()
    table = write_table(Path("t.csv"))
    table["sex"] = table["sex"].where(table["sex"] != "", None)
    table.to_parquet("parts/a.parquet")
    cli(f"fit {QUICK} {TABLE.replace('t.csv', 'parts')} --data.drop [town]")
    run = load_run(LAST)
    rows = evaluate(run)
    expected = table["sex"].iloc[rows.rows.numpy()]
    assert (rows.attributes["sex"].isna().to_numpy() == expected.isna().to_numpy()).all()
    assert (rows.attributes["sex"].dropna().to_numpy() == expected.dropna().to_numpy()).all()
    with pytest.raises(InputError, match=r"not read from a directory .*audit that file"):
        evaluate(run, attributes=["town"])


def test_data_without_s(cli: Cli) -> None:
    write_table(Path("t.csv"))
    cli(f"fit {QUICK} {TABLE.replace('--data.sensitive sex', '--data.drop [sex]')}")
    rows = evaluate(load_run(LAST))
    assert rows.data.group_names == []
    assert torch.equal(rows.groups, torch.full((len(rows.target),), -1))
    assert rows.attributes.shape == (len(rows.target), 0)


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


def test_no_trainer_is_announced_that_does_not_run(cli: Cli, heard: list[str]) -> None:
    cli(f"fit {QUICK} {SYNTHETIC}")
    heard.clear()
    main(["audit", str(LAST), "--against", str(LAST)])
    assert heard == ["Data: split (seed 0) and encoding are those of the checkpoint."]


def test_a_list_is_the_tuple_of_the_checkpoint() -> None:
    config = {"class_path": "fairrf_lightning.FairRFModule", "init_args": {"sizes": [1, 2]}}
    _check_options("model", config, {"sizes": (1, 2)}, "last.ckpt", "the model")
    with pytest.raises(InputError, match="trained with"):
        _check_options("model", config, {"sizes": (1, 3)}, "last.ckpt", "the model")


@pytest.mark.parametrize("known", [torch.tensor([]), [torch.zeros(2)], {"a": torch.zeros(2)}])
def test_a_tensor_in_place_of_an_option_is_another_value(known: object) -> None:
    config = {"class_path": "fairrf_lightning.FairRFModule", "init_args": {"eta": 0.5}}
    with pytest.raises(InputError, match="trained with"):
        _check_options("model", config, {"eta": known}, "last.ckpt", "the model")
