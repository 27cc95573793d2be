"""Every command of the documentation runs as printed, and so does every command that it prints."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands.cannot_run import CANNOT_RUN, reason
from tests.commands.shell_text import ROOT, Command, documented_commands, printed_commands
from tests.commands.workspace import Workspace, run

COMMANDS = documented_commands()
RUNNABLE = list({command.text: command for command in COMMANDS if reason(command.text) is None}.values())
_seen: set[str] = set()  # printed commands that were run already


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("shared"))


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNNABLE, ids=lambda command: command.text)
def test_command_and_those_it_prints_run(command: Command, workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    if command.page.startswith("examples/"):
        shutil.copytree(ROOT / "examples", folder / "examples")
        shutil.copytree(ROOT / "callbacks", folder / "callbacks")
        folder = folder / "examples" / "cli_project"
    else:
        workspace.prepare(folder, command.words)
    done = run(command.words, folder)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    failed = []
    for text in printed_commands(done.stdout + done.stderr + _pages_below(folder)):
        if text in _seen or reason(text):
            continue
        _seen.add(text)
        again = run(shlex.split(text), folder)
        if again.returncode:
            failed.append(f"{text}\n{(again.stderr or again.stdout)[-500:]}")
    assert not failed, "\n\n".join(failed)


def _pages_below(folder: Path) -> str:
    """Return the reports that the command has written."""
    pages = [page for pattern in ("report.html", "model_card.md") for page in folder.rglob(pattern)]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if not page.is_symlink())


@pytest.mark.parametrize("pattern", CANNOT_RUN)
def test_commands_that_cannot_run_are_in_the_documentation(pattern: str) -> None:
    assert any(re.fullmatch(pattern, command.text) for command in COMMANDS), "leave it out of the list"
