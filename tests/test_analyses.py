"""Every command that measures is a function that returns the result, prints nothing and writes nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from lightning import seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.audit import Scores, audit, audit_by_survey, plan_survey, sample_size
from fairrf_lightning.certificate import certify
from fairrf_lightning.cli.audit import audit_command, sample_size_command
from fairrf_lightning.cli.certify import certify_command
from fairrf_lightning.cli.correct import correct_command, correct_scores_command
from fairrf_lightning.cli.grid import grid_command
from fairrf_lightning.cli.main import COMMANDS
from fairrf_lightning.cli.parsing import command_help
from fairrf_lightning.cli.suggest import suggest_command
from fairrf_lightning.cli.survey import draw_command, plan_command
from fairrf_lightning.cli.sweep import sweep_command
from fairrf_lightning.correct import correct, correct_scores
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.datamodules.sensitive import draw_form
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, grid
from fairrf_lightning.experiments.sweep import sweep
from fairrf_lightning.suggest import suggest
from tests.surveys import write_survey
from tests.trainers import quiet_trainer


class Analysis(NamedTuple):
    """A command, the functions behind it, and a call of each."""

    command: Callable[..., Any]
    functions: tuple[Callable[..., Any], ...]
    calls: tuple[Callable[[], Any], ...]


ANALYSES = {
    "audit": Analysis(
        audit_command,
        (audit, audit_by_survey),
        (
            lambda: audit("model.ckpt", ["group"], against="model.ckpt", split="val"),
            lambda: audit("sample.csv", ["group"], prob="lottery", target="label"),
            lambda: audit_by_survey("model.ckpt", "survey.csv"),
        ),
    ),
    "certify": Analysis(
        certify_command, (certify,), (lambda: certify("model.ckpt", audit_sample="sample.csv"),)
    ),
    "correct": Analysis(
        correct_command, (correct,), (lambda: correct("model.ckpt", survey="survey.csv", goal="dp=0.2"),)
    ),
    "correct --predictions": Analysis(
        correct_scores_command,
        (correct_scores,),
        (
            lambda: correct_scores(
                "sample.csv",
                survey=Path("sample.csv"),
                sensitive="group",
                prob="lottery",
                target="label",
                columns=["height", "income"],
            ),
        ),
    ),
    "grid": Analysis(
        grid_command,
        (grid, Setting, Schedule),
        (lambda: grid(SyntheticDataModule, eta=[0.5], seeds=2, schedule=Schedule(epochs=2)),),
    ),
    "sample-size": Analysis(sample_size_command, (sample_size,), (lambda: sample_size(0.1),)),
    "suggest": Analysis(
        suggest_command, (suggest,), (lambda: suggest(SyntheticDataModule(), sensitive="group"),)
    ),
    "survey draw": Analysis(draw_command, (draw_form,), (lambda: draw_form(SyntheticDataModule(), 60),)),
    "survey plan": Analysis(
        plan_command, (plan_survey,), (lambda: plan_survey(0.1, ckpt_path="model.ckpt"),)
    ),
    "sweep": Analysis(
        sweep_command, (sweep,), (lambda: sweep(SyntheticDataModule(), trials=1, epochs=2, seeds=[0]),)
    ),
}
# Commands that train one model, or whose purpose is a file.
OTHERS = {"fit", "test", "validate", "predict", "report", "to_parquet", "dashboard", "reproduce"}
# Options that read the data or a checkpoint, or write files. `act_above` of a grid is about the data alone.
OF_COMMANDS = {"data", "trust", "out", "output", "template", "plot", "report", "ckpt_path", "act_above"}
RENAMED = {"model": "method"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, a survey, and rows where S is known."""
    path = tmp_path_factory.mktemp("analyses")
    seed_everything(0)
    data = SyntheticDataModule()
    module = FairRFModule(backbone="linear", eta=0.3)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(path / "model.ckpt")
    write_survey(data, 300, path / "survey.csv")
    sample = data.read().sample(400, random_state=0)
    sample.assign(lottery=sample["lottery"].rank(pct=True)).to_csv(path / "sample.csv", index=False)
    return path


def test_every_command_is_an_analysis_or_known_not_to_be() -> None:
    assert {name.partition(" ")[0] for name in ANALYSES} | OTHERS == {one.name for one in COMMANDS}


@pytest.mark.parametrize("name", ANALYSES)
def test_the_function_takes_the_options_of_the_command(name: str) -> None:
    command, functions, _ = ANALYSES[name]
    options = set(re.findall(r"^  --(\w+)", command_help(command, name), re.MULTILINE))
    assert options
    known = {option for function in functions for option in inspect.signature(function).parameters}
    assert {RENAMED.get(option, option) for option in options} - OF_COMMANDS <= known


@pytest.mark.parametrize("call", [call for one in ANALYSES.values() for call in one.calls])
def test_an_analysis_only_returns(
    call: Callable[[], Any], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    found = call()
    assert not capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    if not isinstance(found, pd.DataFrame):
        with pytest.raises(FrozenInstanceError):
            found.level = 0.9
    shown = repr(found)
    assert len(shown) < 5000
    assert "tensor(" not in shown
    assert re.match(r"\s*<(p|div|table)", found._repr_html_())


PEOPLE = pd.DataFrame({"sex": ["f", "m", "f"]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grid(SyntheticDataModule, seeds=0), r"seeds = \[\]"),
        (lambda: grid(SyntheticDataModule, seeds=[1, 1]), r"seeds = \[1, 1\]: expected .* different"),
        (lambda: grid(SyntheticDataModule, method="alr"), "method = 'alr'"),  # type: ignore[arg-type]
        (lambda: sweep(SyntheticDataModule(), seeds=[]), r"seeds = \[\]"),
        (lambda: sweep(SyntheticDataModule(), seeds=[-1]), r"seeds = \[-1\]"),
        (lambda: suggest(SyntheticDataModule(), seed=-1), "seed = -1"),
        (lambda: draw_form(SyntheticDataModule(), 9, seed=-1), "seed = -1"),
        (lambda: draw_form(SyntheticDataModule(), 9, split="tst"), "split = 'tst'"),  # type: ignore[arg-type]
        (lambda: draw_form(SyntheticDataModule(), 9, randomized=2.0), "--randomized 2.0"),
        (lambda: sample_size(0.1, shares=(0.5, float("nan"))), "--shares 0.5,nan"),
        (lambda: audit(Scores(["sex"]), threshold=0.3), "--threshold 0.3: the scores have their own"),
        (lambda: audit(Scores(["sex"]), against="other.ckpt"), "--against other.ckpt: the scores have"),
        (lambda: Scores.of_arrays(np.zeros(3), np.zeros((1, 4)), PEOPLE), r"probabilities \(1, 4\)"),
        (lambda: Scores.of_arrays(np.zeros(2), np.zeros((1, 3)), PEOPLE), "a true class for each row"),
        (lambda: Scores.of_arrays(None, np.zeros(3), PEOPLE), r"probabilities \(3,\)"),
        (lambda: Scores.of_arrays(None, np.zeros((1, 0)), PEOPLE[:0]), "0 rows"),
        (lambda: Scores.of_arrays(np.full(3, 0.5), np.zeros((1, 3)), PEOPLE), "expected whole numbers"),
    ],
)
def test_what_the_command_line_would_not_pass_on_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
