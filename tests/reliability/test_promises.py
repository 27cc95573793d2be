from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_every_promise_names_a_test_that_exists() -> None:
    promises = r"^\| (?!promise|file).* \| (`.*\.py`) \|$"
    rows = re.findall(promises, PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]
    assert len(rows) > 30
    for name in named:
        found = [folder / name for folder in (ROOT / "tests", ROOT / "tests" / "reliability")]
        assert any(path.is_file() for path in found), name
