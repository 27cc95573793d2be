"""The notices that commands print after the results, and that ``run.json`` keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import torch
from lightning import Callback, LightningModule
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.methods import ARLModule
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.notices import model_notices
from tests.conftest import Printed
from tests.dropin.test_side_channel import Strict
from tests.test_module import PeopleData
from tests.trainers import quiet_trainer

Cli: TypeAlias = Callable[[str], None]
RUN = Path("lightning_logs/version_0")
SMALL = "--data synthetic --data.n_rows 600 --trainer.max_epochs 3"
VANILLA = "this is a vanilla model: the penalty was never on (eta 0.7)"
SECRETS = ["sex", "Race", "maritalStatus"]


def notes(printed: str) -> list[str]:
    """Return the notices, which come after the table and before the next commands."""
    return [line.removeprefix("note: ") for line in printed.splitlines() if line.startswith("note: ")]


def notices_after(module: LightningModule, *callbacks: Callback, **options: Any) -> list[str]:
    """Train a few steps and return the notices about the model."""
    trainer = quiet_trainer(callbacks=list(callbacks), **{"max_epochs": 2} | options)
    trainer.fit(module, PeopleData())
    return model_notices(trainer, module, "val", fitted=True)


def notices_in_record() -> list[str]:
    notices: list[str] = json.loads((RUN / "run.json").read_text(encoding="utf-8"))["notices"]
    return notices


def german_credit(path: Path, **more: Any) -> str:
    """Write a table like the German credit data: 1,000 rows, 700 positives, 20 features; return options."""
    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"age": draw.integers(19, 75, 1000)}
    columns |= {f"x{number}": draw.normal(size=1000).round(3) for number in range(13)}
    columns |= {f"c{number}": draw.choice(list("ABCD"), 1000) for number in range(6)}
    score = 1.2 * columns["x0"] + 0.9 * columns["x1"] - 0.7 * columns["x2"] + draw.logistic(size=1000)
    good = np.zeros(1000, dtype=bool)
    good[np.argsort(score)[300:]] = True
    groups = np.where(draw.random(1000) < 0.31, "f", "m")
    table = pd.DataFrame(columns | {"group": groups, "credit": np.where(good, "good", "bad")} | more)
    table.to_csv(path, index=False)
    known = f"--data table --data.path {path} --data.target credit --data.positive good"
    return f"{known} --data.related [age] --data.sensitive group"


def test_a_run_that_ends_within_pretraining_is_called_vanilla(printed: Printed) -> None:
    out = printed("fit --data synthetic --data.n_rows 600 --trainer.max_epochs 1")
    assert notes(out)[-1].startswith(VANILLA)
    assert "\nvanilla (eta 0.7, the penalty was never on); lambda: " in out  # in the lines of the table
    assert any(notice.startswith(VANILLA) for notice in notices_in_record())


def test_few_steps_are_called_vanilla() -> None:
    found = notices_after(FairRFModule(backbone=Linear, eta=0.7), PretrainCallback(epochs=1), max_steps=2)
    assert found[-1].startswith(VANILLA)
    assert "pretraining (epochs 1)" in found[-1]


def test_fast_dev_run_says_that_nothing_is_trained(printed: Printed) -> None:
    out = printed("fit --data synthetic --data.n_rows 600 --trainer.fast_dev_run true")
    assert "Test split" not in out
    first, second = notes(out)[-2:]
    assert first.startswith("fast_dev_run")
    assert second.startswith(VANILLA)


def test_a_penalised_run_is_not_called_vanilla(printed: Printed) -> None:
    out = printed(f"fit {SMALL} --model.lr 0.01 --lambda_update.every_n_steps 1 --pretrain.epochs 0")
    assert "vanilla" not in out
    assert "note:" not in out
    assert notices_in_record() == []


def test_the_chosen_checkpoint_counts_not_the_last_epoch(printed: Printed) -> None:
    options = "--checkpoint.save_top_k -1 --pretrain.epochs 1 --lambda_update.every_n_steps 1"
    assert VANILLA not in printed(f"fit {SMALL} --model.lr 0.01 {options}")
    for epoch, is_vanilla in ((0, True), (2, False)):
        (kept,) = (RUN / "checkpoints").glob(f"epoch={epoch}-*.ckpt")
        out = printed(f"test --data synthetic --data.n_rows 600 --ckpt_path {kept}")
        assert (VANILLA in out) is is_vanilla


def test_lambda_never_updated_is_said_last(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {SMALL} --model.lr 0.01 --lambda_update.every_n_steps 1000")
    printed = capsys.readouterr()
    assert notes(printed.out)[-1].startswith("lambda was never updated: the penalty")
    assert printed.out.count("never updated") == 1
    assert "never updated" not in printed.err
    assert notices_in_record()[0].startswith("lambda was never updated")


def test_a_fixed_lambda_is_no_notice() -> None:
    assert notices_after(FairRFModule(backbone=Linear), LambdaUpdateCallback(every_n_steps=None)) == []


def test_a_collapsed_lambda_is_named() -> None:
    update = LambdaUpdateCallback(beta=1e-9, every_n_steps=2)
    with pytest.warns(UserWarning, match="lambda has collapsed onto"):
        (found,) = notices_after(FairRFModule(backbone=Linear), update)
    assert "Raise beta (now 1e-09)" in found


def test_equal_decisions_are_said_before_the_gaps_and_first_of_all(printed: Printed) -> None:
    options = german_credit(Path("german.csv"))
    before, after = printed(f"fit {options} --data.batch_size 512").split("Test split")  # 20 steps
    assert notes(before)[-1].startswith(SAME_DECISION)
    assert notes(after)[0].startswith(f"{SAME_DECISION}. Every decision is positive.")
    assert notices_in_record()[0].startswith(SAME_DECISION)


def test_by_default_a_small_table_is_learned(printed: Printed) -> None:
    out = printed(f"fit {german_credit(Path('german.csv'))}")
    logged = pd.read_csv(RUN / "metrics.csv")
    assert logged["test_balanced_acc"].dropna().item() > 0.55
    assert 0 < logged["test_positive_share"].dropna().item() < 1
    assert SAME_DECISION not in out
    assert "almost every decision" not in out
    config = (RUN / "config.yaml").read_text(encoding="utf-8")
    assert "batch_size: 64\n" in config
    assert "  every_n_steps: 6\n" in config


def test_an_adversary_that_never_stepped_is_vanilla() -> None:
    (found,) = notices_after(ARLModule(backbone=Linear))
    assert "the adversary of ARL never stepped" in found
    assert notices_after(ARLModule(backbone=Linear, pretrain_steps=0)) == []


def test_columns_with_a_protected_name_are_named(printed: Printed) -> None:
    draw = np.random.default_rng(1)
    secrets = {name: draw.choice(["a", "b"], 1000) for name in SECRETS}
    options = german_credit(Path("german.csv"), **secrets)
    expected = "columns 'sex', 'Race', 'maritalStatus' are inputs of the model, and protected by name."
    assert expected in notes(printed(f"fit {options} --trainer.max_epochs 1"))[-1]
    assert any(expected in notice for notice in notices_in_record())
    best = RUN / "checkpoints/best.ckpt"
    assert expected in notes(printed(f"test --data table --data.path german.csv --ckpt_path {best}"))[-1]
    dropped = "--data.drop [sex] --data.related [age,Race,maritalStatus]"
    assert "protected by name" not in printed(f"fit {options} --trainer.max_epochs 1 {dropped}")


@pytest.mark.parametrize(("epochs", "is_vanilla"), [(1, True), (2, False)])
def test_an_attached_penalty_counts_as_the_tested_checkpoint_has_it(
    tmp_path: Path, epochs: int, *, is_vanilla: bool
) -> None:
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.ones(64)), batch_size=16)
    fairness = RelatedFeaturePenalty({"age": [0], "zip": [1]}, eta=0.5)
    callback = LambdaUpdateCallback(penalty=fairness, module="net")
    trainer = quiet_trainer(max_epochs=epochs, callbacks=[PretrainCallback(epochs=1), callback])
    module = Strict()
    trainer.fit(module, loader)
    path = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(path)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, loader, ckpt_path=str(path))  # the callback's own counters have moved on
    assert fairness.penalised_steps > 0
    trainer.test(module, loader, ckpt_path=str(path), verbose=False)
    found = model_notices(trainer, module, fitted=True)
    assert any(notice.startswith("this is a vanilla model") for notice in found) is is_vanilla


def test_a_resumed_run_that_had_ended_says_that_nothing_was_trained(printed: Printed) -> None:
    sentence = "nothing was trained: the checkpoint is of a run that had ended"
    assert sentence not in printed(f"fit {SMALL}")
    last = RUN / "checkpoints" / "last.ckpt"
    assert f"note: {sentence}" in printed(f"fit {SMALL} --ckpt_path {last}")
    longer = "--data synthetic --data.n_rows 600 --trainer.max_epochs 4"
    assert sentence not in printed(f"fit {longer} --ckpt_path {last}")


def test_predict_names_categories_that_training_did_not_have(cli: Cli, printed: Printed) -> None:
    cli(f"fit {german_credit(Path('credit.csv'))} --data.drop [c5] --trainer.max_epochs 1")
    new = pd.read_csv("credit.csv").head(50)
    new.assign(c0=["Z"] * 20 + ["A"] * 30, c1="Y").to_csv("new.csv", index=False)
    lines = notes(printed(f"predict --ckpt_path {RUN} --data.path new.csv"))
    found = [line for line in lines if "absent in training" in line]
    assert len(found) == 1
    assert "'c0' in 20, 'c1' in 50 of 50 rows" in found[0]
    assert "absent in training" not in printed(f"predict --ckpt_path {RUN} --data.path credit.csv")


@pytest.mark.filterwarnings("ignore:.*is not the table that the checkpoint was trained on:UserWarning")
def test_a_run_resumed_on_another_table_says_so_last(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"{german_credit(Path('credit.csv'))} --trainer.max_epochs"
    cli(f"fit {options} 1")
    table = pd.read_csv("credit.csv")
    table[::-1].to_csv("credit.csv", index=False)
    capsys.readouterr()
    cli(f"fit {options} 2 --ckpt_path {RUN / 'checkpoints/last.ckpt'}")
    found = notes(capsys.readouterr().out)[-1]
    assert "credit.csv is not the table that the run was started with" in found
    record = json.loads(Path("lightning_logs/version_1/run.json").read_text(encoding="utf-8"))
    assert any("the model was trained on both" in notice for notice in record["notices"])


def test_predictions_without_their_labels_say_so(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {german_credit(Path('credit.csv'))} --trainer.max_epochs 1")
    new = pd.read_csv("credit.csv").head(50)
    for values, expected in (
        ("LOUD", "such as 'LOUD', in 50 of 50 rows"),
        (new["credit"].where(new.index > 3), "'credit' has no value in 4 of 50 rows"),
        (None, ""),
        (new["credit"], ""),
    ):
        new.assign(credit=values).to_csv("new.csv", index=False)
        capsys.readouterr()
        cli(f"predict --ckpt_path {RUN} --data.path new.csv")
        found = [line for line in notes(capsys.readouterr().out) if "no column 'target'" in line]
        assert len(found) == bool(expected)
        assert all(expected in line for line in found)
        assert ("target" in pd.read_csv("predictions.csv")) is (values is not None and not expected)
