"""The README's code runs as it stands."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
BASH = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))
COMMANDS = re.findall(r"^python train\.py (fit .*)$", BASH, flags=re.MULTILINE)


@pytest.mark.parametrize("block", PYTHON)
@pytest.mark.filterwarnings(
    "ignore:.*validation_step.*", "ignore:.*logging interval.*", "ignore:.*tensorboardX.*"
)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102 - this is the point


@pytest.mark.parametrize("command", COMMANDS)
def test_fit_commands_parse(
    command: str, cli: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("callbacks", "datamodules"):
        Path(folder).symlink_to(ROOT / folder)
    assert sys.argv == ["train.py"]
    with pytest.raises(SystemExit) as exit_info:
        cli(f"{command} --print_config")
    assert exit_info.value.code == 0
    assert "AdultDataModule" in capsys.readouterr().out


def test_the_readme_has_code_to_run() -> None:
    assert len(PYTHON) == 3
    assert len(COMMANDS) == 3
