"""The sentences that commands end with, in ``run.json`` as well: issue 11, items 8, 9, 10 and 18."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.notices import model_notices

Cli: TypeAlias = Callable[[str], None]
RUN = Path("lightning_logs/version_0")
SMALL = "--data synthetic --data.n_rows 600 --trainer.max_epochs 3"
VANILLA = "this is a vanilla model: the penalty was never on (eta 0.7)"
SECRETS = ["sex", "Race", "maritalStatus"]


def last_lines(text: str, count: int = 1) -> list[str]:
    return text.strip().splitlines()[-count:]


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


def test_a_run_that_ends_within_pretraining_is_called_vanilla(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("fit --data synthetic --data.n_rows 600 --trainer.max_epochs 1")
    printed = capsys.readouterr().out
    assert last_lines(printed)[0].startswith(f"note: {VANILLA}")
    assert "the penalty was never on (vanilla)\n" in printed  # in the lines of the table
    assert any(notice.startswith(VANILLA) for notice in notices_in_record())


@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_few_steps_are_called_vanilla(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli("fit --data synthetic --data.n_rows 600 --trainer.max_steps 2")
    assert f"note: {VANILLA}" in last_lines(capsys.readouterr().out, 2)[-1]


def test_fast_dev_run_says_that_nothing_is_trained(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli("fit --data synthetic --data.n_rows 600 --trainer.fast_dev_run true")
    first, second = last_lines(capsys.readouterr().out, 2)
    assert first.startswith("note: fast_dev_run")
    assert second.startswith(f"note: {VANILLA}")


def test_a_penalised_run_is_not_called_vanilla(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {SMALL} --model.lr 0.01 --lambda_update.every_n_steps 1 --pretrain.epochs 0")
    printed = capsys.readouterr().out
    assert "vanilla" not in printed
    assert "note:" not in printed
    assert notices_in_record() == []


def test_the_chosen_checkpoint_counts_not_the_last_epoch(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--checkpoint.save_top_k -1 --pretrain.epochs 1 --lambda_update.every_n_steps 1"
    cli(f"fit {SMALL} --model.lr 0.01 {options}")
    assert VANILLA not in capsys.readouterr().out
    for epoch, is_vanilla in ((0, True), (2, False)):
        (kept,) = (RUN / "checkpoints").glob(f"epoch={epoch}-*.ckpt")
        cli(f"test --data synthetic --data.n_rows 600 --ckpt_path {kept}")
        assert (VANILLA in last_lines(capsys.readouterr().out)[0]) is is_vanilla


def test_lambda_never_updated_is_said_last(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {SMALL} --model.lr 0.01 --lambda_update.every_n_steps 1000")
    assert last_lines(capsys.readouterr().out)[0].startswith("note: lambda was never updated: the penalty")
    assert notices_in_record()[0].startswith("lambda was never updated")


def test_a_fixed_lambda_is_no_notice(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {SMALL} --model.lr 0.01 --lambda_update.every_n_steps null")
    assert "never updated" not in capsys.readouterr().out


def test_equal_decisions_are_said_before_the_gaps_and_first_of_all(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    options = german_credit(Path("german.csv"))
    cli(f"fit {options} --data.batch_size 512")  # 20 steps
    before, after = capsys.readouterr().out.split("Test split")
    assert last_lines(before)[0].startswith(f"note: {SAME_DECISION}")
    notes = [line for line in after.splitlines() if line.startswith("note:")]
    assert notes[0].startswith(f"note: {SAME_DECISION}. Every decision is positive.")
    assert notices_in_record()[0].startswith(SAME_DECISION)


def test_by_default_a_small_table_is_learned(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {german_credit(Path('german.csv'))}")
    logged = pd.read_csv(RUN / "metrics.csv")
    assert logged["test_balanced_acc"].dropna().item() > 0.55
    assert 0 < logged["test_positive_share"].dropna().item() < 1
    assert SAME_DECISION not in capsys.readouterr().out
    config = (RUN / "config.yaml").read_text(encoding="utf-8")
    assert "batch_size: 64\n" in config
    assert "  every_n_steps: 6\n" in config


def test_an_adversary_that_never_stepped_is_vanilla(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"fit {SMALL} --method arl")
    assert "the adversary of ARL never stepped" in last_lines(capsys.readouterr().out)[0]


def test_columns_with_a_protected_name_are_named(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(1)
    secrets = {name: draw.choice(["a", "b"], 1000) for name in SECRETS}
    options = german_credit(Path("german.csv"), **secrets)
    cli(f"fit {options} --trainer.max_epochs 2")
    expected = "columns 'sex', 'Race', 'maritalStatus' are inputs of the model, and protected by name."
    assert expected in last_lines(capsys.readouterr().out)[0]
    assert any(expected in notice for notice in notices_in_record())
    cli(f"test --data table --data.path german.csv --ckpt_path {next(RUN.glob('checkpoints/best.ckpt'))}")
    assert expected in last_lines(capsys.readouterr().out)[0]
    cli(f"fit {options} --trainer.max_epochs 2 --data.drop [sex] --data.related [age,Race,maritalStatus]")
    assert "protected by name" not in capsys.readouterr().out


class Foreign(LightningModule):
    """A module that knows nothing of the penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.softplus(self.net(batch[0])).mean()

    def test_step(self, batch: list[torch.Tensor]) -> None:
        self.log("test_loss", self.net(batch[0]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("epochs", "is_vanilla"), [(1, True), (2, False)])
def test_an_attached_penalty_counts_as_the_tested_checkpoint_has_it(
    tmp_path: Path, epochs: int, *, is_vanilla: bool
) -> None:
    loader = DataLoader(TensorDataset(torch.randn(64, 2)), batch_size=16)
    fairness = RelatedFeaturePenalty({"age": [0], "zip": [1]}, eta=0.5)
    callback = LambdaUpdateCallback(penalty=fairness, module="net")
    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[PretrainCallback(epochs=1), callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Foreign()
    trainer.fit(module, loader)
    path = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(path)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, loader, ckpt_path=str(path))  # the callback's own counters have moved on
    assert fairness.penalised_steps > 0
    trainer.test(module, loader, ckpt_path=str(path), verbose=False)
    found = model_notices(trainer, module, fitted=True)
    assert any(notice.startswith("this is a vanilla model") for notice in found) is is_vanilla


def test_a_resumed_run_that_had_ended_says_that_nothing_was_trained(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli(f"fit {SMALL}")
    sentence = "nothing was trained: the checkpoint is of a run that had ended"
    assert sentence not in capsys.readouterr().out
    last = RUN / "checkpoints" / "last.ckpt"
    cli(f"fit {SMALL} --ckpt_path {last}")
    assert f"note: {sentence}" in capsys.readouterr().out
    cli(f"fit --data synthetic --data.n_rows 600 --trainer.max_epochs 4 --ckpt_path {last}")
    assert sentence not in capsys.readouterr().out
