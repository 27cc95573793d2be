"""The code of the pages under docs/ runs as it stands."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = re.findall(r"^python train\.py (fit .*)$", TEXT, flags=re.MULTILINE)


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {})  # noqa: S102 - this is the point


@pytest.mark.parametrize("command", COMMANDS)
def test_fit_commands_parse(command: str, cli: Callable[[str], None]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli(" ".join([*shlex.split(command), "--print_config"]))
    assert exit_info.value.code == 0


def test_the_pages_have_code_to_run() -> None:
    assert PYTHON
    assert COMMANDS
