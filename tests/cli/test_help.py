"""The help fits a screen, names options that exist, and needs no torch (tests/test_layers.py)."""

from __future__ import annotations

import re
import sys

import pytest

from fairrf_lightning.backbones import BACKBONES
from fairrf_lightning.cli import main
from fairrf_lightning.cli.main import COMMANDS, find_command
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional.penalty import STATISTICS
from fairrf_lightning.presets import accepted_options, preset_names


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook"])  # shown as "python train.py"


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys)
    assert page == shown(capsys, "--help")
    for command in COMMANDS:
        assert f"\n  {command.name} " in page
        assert f"\n{command.group}:\n" in page
    assert page.count("train.py") >= 5  # usage, three examples, help of a command


@pytest.mark.parametrize("command", ["audit", "sample-size"])
def test_examples_name_the_program(capsys: pytest.CaptureFixture[str], command: str) -> None:
    _, _, examples = shown(capsys, command, "--help").partition("Examples:\n")
    assert examples
    assert all(line.startswith(f"  python train.py {command} ") for line in examples.splitlines())


def test_help_of_predict_says_which_rows(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "predict", "--help")
    assert "new rows" in page
    assert "of each test row" not in page
    assert max(map(len, page.splitlines())) <= 80


def test_an_earlier_name_still_works() -> None:
    assert find_command("labels").name == "sample-size"
    with pytest.raises(InputError, match="did you mean 'report'"):
        find_command("reprot")


def test_help_of_fit_is_one_screen_of_real_options(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "fit", "--help")
    assert len(page.splitlines()) <= 42
    assert max(map(len, page.splitlines())) <= 80
    for name in preset_names("datamodules"):
        assert name in page
    every = shown(capsys, "fit", "--help-all")
    for option in re.findall(r"--([a-z_.]+)", page):
        group, _, name = option.partition(".")
        if group == "data" and name not in ("help", ""):
            assert name in accepted_options(TableDataModule)
        elif group != "model" and option not in ("method", "help", "data.help"):
            assert f"--{option}" in every


def test_all_options_can_be_searched(capsys: pytest.CaptureFixture[str]) -> None:
    every = shown(capsys, "fit", "--help-all")
    assert "fit --help-all | grep -A4 precision" in every
    assert "known subclasses" not in re.sub(r"\s+", " ", every)
    headings = re.findall(r"^([A-Z]\w*)[^:\n]*(?:\([^)]*\))?:$", every, flags=re.MULTILINE)
    assert headings[0] == "Trainer"
    assert {"Model", "Data", "Pretraining", "Lambda", "Checkpoints", "Predictions", "Resume"} <= set(headings)


def test_all_options_of_an_evaluation_say_which_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    head = shown(capsys, "test", "--help-all").partition("precision")[0]
    assert "Those of\ntraining, such as --pretrain, are for config files here, and have no effect.\n" in head
    assert "have no effect" not in shown(capsys, "fit", "--help-all").partition("precision")[0]


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_help_of_evaluation_is_short(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, command, "-h")
    assert "--ckpt_path FILE" in page
    assert max(map(len, page.splitlines())) <= 80
    assert ("--predictions.path" in page) is (command == "predict")


@pytest.mark.parametrize("command", [one.name for one in COMMANDS if one.group != "Train"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage" in shown(capsys, command, "--help").lower()


@pytest.mark.parametrize("command", ["suggest", "correct", "correct --predictions", "certify", "survey"])
def test_s_is_spelt_out_before_it_is_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    defined = shown.index("sensitive attribute (S)")
    assert not re.search(r"\bS\b", shown[:defined])


def test_help_of_fit_names_every_statistic_and_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "fit", "--help")
    for name in (*STATISTICS, *BACKBONES):
        assert re.search(rf"--model\.(statistic|backbone) .*\b{name}\b", page), name
