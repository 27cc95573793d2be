"""What is read from the files of a run, however odd they are."""

from pathlib import Path

import pytest
import torch

from fairrf_lightning.errors import InputError
from fairrf_lightning.load import RunFolder, read_checkpoint
from fairrf_lightning.report.facts import DataFacts
from fairrf_lightning.report.run import RunAudit, run_facts

RECORD = """{"data": "X", "rows": {"test": 3}, "columns": ["a", "b=1", "b=2"], "related": {"a": [0]},
"sensitive": "s",
"include_sensitive": %s, "expose_sensitive": %s, "groups": ["f", "m"]}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(
        "model: {class_path: mine.Net}\ndata: {class_path: my.XDataModule}\n"
    )
    return tmp_path


def data_of(folder: Path, include: str, expose: str) -> DataFacts:
    (folder / "run.json").write_text(RECORD % (include, expose))
    found = run_facts(RunFolder(folder), RunAudit()).data
    assert found is not None
    return found


def test_what_the_model_saw_of_s_is_told(folder: Path) -> None:
    assert data_of(folder, "true", "false").use_of_sensitive == "s is an input of the model."
    assert "used by the penalty" in data_of(folder, "false", "true").use_of_sensitive
    data = data_of(folder, "false", "false")
    assert "not used in training" in data.use_of_sensitive
    assert data.columns == {"a": ["a"], "b": ["b=1", "b=2"]}
    assert data.name == "x"


def test_a_foreign_run_is_reported_with_what_it_has(folder: Path) -> None:
    facts = run_facts(RunFolder(folder), RunAudit())
    assert (facts.subject, facts.data, facts.accuracy, list(facts.gaps)) == ("Net", None, None, [])
    assert facts.verdict.tone == "unknown"
    assert set(facts.as_dict()["absent"]) >= {"gaps", "groups", "front", "training", "data"}
    (folder / "config.yaml").write_text("model: {init_args: {eta: 0.0}}")
    assert run_facts(RunFolder(folder), RunAudit()).subject == "vanilla"


def test_lambda_alone_makes_a_path(folder: Path) -> None:
    (folder / "metrics.csv").write_text("epoch,lambda/a\n0,0.5\n1,\n2,0.7\n")
    found = run_facts(RunFolder(folder), RunAudit()).training
    assert found is not None
    assert (found.weights[0].epochs, found.weights[0].values) == ([0, 2], [0.5, 0.7])
    assert (found.penalties, found.chosen_epoch, found.rule) == ([], None, "the last epoch")


def test_a_broken_checkpoint_is_told(folder: Path) -> None:
    (folder / "checkpoints").mkdir()
    broken = folder / "checkpoints" / "x.ckpt"
    broken.write_text("no checkpoint")
    assert RunFolder(folder).best_checkpoint == broken
    with pytest.raises(InputError, match="not a readable checkpoint"):
        read_checkpoint(broken)


def test_the_built_in_callback_names_the_checkpoint_of_a_run(folder: Path) -> None:
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    states = {"PenalisedCheckpoint{}": "fairest.ckpt", "BestCheckpoint{}": "mine.ckpt"}
    callbacks = {key: {"best_model_path": f"/elsewhere/{name}"} for key, name in states.items()}
    for name in ("fairest.ckpt", "mine.ckpt", "last.ckpt"):
        torch.save({"state_dict": {}, "callbacks": callbacks}, checkpoints / name)
    assert RunFolder(folder).best_checkpoint == checkpoints / "mine.ckpt"
