"""Every command of the README and the pages is understood, and its Python code runs as it stands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import pytest

from fairrf_lightning.cli import main
from tests.commands.cannot_run import reason
from tests.commands.shell_text import ROOT, Command, documented_commands, python_blocks

COMMANDS = documented_commands()
LIGHTNING = ("fit", "validate", "test", "predict")
OURS = [command for command in COMMANDS if command.arguments]


class _Parsed(BaseException):
    """Raised as soon as a command has parsed its options."""


def _then_stop(parse: Callable[..., Any]) -> Callable[..., Any]:
    def parse_only(self: Any, args: Any = None, *more: Any, **options: Any) -> Any:
        parse(self, args, *more, **options)
        raise _Parsed

    return parse_only


def _parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if arguments[0] in LIGHTNING and not arguments[1].startswith("-"):
        with pytest.raises(SystemExit):  # its options are those of the run, which is not here
            main(arguments)
    elif arguments[0] in LIGHTNING:
        shows = any(word.endswith("help") for word in arguments)
        with pytest.raises(SystemExit) as end:
            main([*arguments, *([] if shows else ["--print_config"])])
        assert end.value.code == 0
    else:
        stop = _then_stop(jsonargparse.ArgumentParser.parse_args)
        with monkeypatch.context() as patched:
            patched.setattr(jsonargparse.ArgumentParser, "parse_args", stop)
            with pytest.raises(_Parsed):
                main(arguments)


@pytest.mark.parametrize("command", OURS, ids=lambda command: f"{command.page}: {command.text}")
def test_command_is_understood(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("callbacks", "datamodules"):
        (tmp_path / name).symlink_to(ROOT / name)
    for word in command.words:
        if word.endswith("chosen.yaml"):  # what a sweep writes
            path = tmp_path / word
            path.parent.mkdir()
            path.write_text("data: {class_path: adult}\nmodel: {init_args: {eta: 0.5}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    arguments = command.arguments
    assert arguments
    _parse(arguments, monkeypatch)
    if arguments[:3] == ["fit", "--data", "adult"]:
        assert "AdultDataModule" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "code"),
    [
        block for block in python_blocks() if block[0] != "docs/ray.md"
    ],  # tests/scale/test_ray.py has a cluster
)
@pytest.mark.filterwarnings(
    "ignore:.*validation_step.*", "ignore:.*logging interval.*", "ignore:.*tensorboardX.*"
)
def test_python_blocks_run(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})  # noqa: S102 - this is the point


def test_every_page_with_a_command_is_walked() -> None:
    pages = {command.page for command in COMMANDS}
    assert {"README.md", "docs/audit.md", "docs/certificate.md", "docs/tables.md", "docs/sweeps.md"} <= pages
    assert len(OURS) > 40
    assert len(python_blocks()) > 10


def test_every_script_that_a_page_names_exists() -> None:
    for command in COMMANDS:
        if command.words[0] == "python" and command.words[1].endswith(".py"):
            folders = (ROOT, ROOT / "examples", ROOT / "examples" / "cli_project")
            assert any((folder / command.words[1]).is_file() for folder in folders), command


def test_program_of_each_command_is_ours_or_listed() -> None:
    for command in COMMANDS:
        assert command.words[0] == "python" or reason(command.text), f"{command}: run it, or say why not"
