"""The page and the card as text: the same facts, and no markup from names."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairrf_lightning.errors import InputError
from fairrf_lightning.report import Facts, end_with_report, page, write_report, writing
from fairrf_lightning.report.markdown import escape_markdown
from fairrf_lightning.report.page import render_card, render_page
from tests.report.conftest import CLOSING, HOSTILE


@pytest.fixture(autouse=True)
def _bundle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plotly's five megabytes out, but where the size is tested."""
    if "small" not in request.node.name:
        monkeypatch.setattr(page, "get_plotlyjs", lambda: "")


class Tags(HTMLParser):
    """Collects the tags of a page and the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self.json: dict[str, str] = {}
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self._script = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] in ("script", "style"):
            if self._script is not None:
                self.json[self._script] = self.json.get(self._script, "") + data
        else:
            self.text += data


def test_files_are_whole_and_small(facts: Facts, tmp_path: Path) -> None:
    files = write_report(facts, tmp_path / "new", page="a.html", card="b.md")
    assert files == [tmp_path / "new" / "a.html", tmp_path / "new" / "b.md"]
    assert sorted(tmp_path.rglob("*.*")) == files, "nothing half-written is left"
    assert 4e6 < files[0].stat().st_size < 6e6


def test_names_of_the_users_are_never_markup(facts: Facts) -> None:
    tags = Tags(render_page(facts))
    assert "img" not in tags.found
    assert tags.found.count("script") == 4, "two of data, plotly, ours"
    assert HOSTILE in tags.text
    assert CLOSING in tags.text
    card = render_card(facts)
    assert "<img" not in card
    assert "<script" not in card


def test_the_page_and_the_card_say_the_same(facts: Facts) -> None:
    shown, card = Tags(render_page(facts)).text, render_card(facts)
    said = [facts.verdict.title, "85.2 %", "84.6 to 85.8", "2.00", "0.00 to 6.00", "9.00"]
    said += ["less accurate, beyond noise", "85.7 %"]
    said += ["fairer, beyond noise", "no difference shown", "4,000", "30.00", "25.00 to 36.00", "22,611"]
    said += [
        "certified to be at most 20.0 points",
        "share of rows",
        "0.250",
        "A note.",
        "2.13.0",
        "0.5000",
        "83.80",
        "chosen",
    ]
    for words in said:
        assert words in shown, words
        assert words in card, words
    for name in (HOSTILE, CLOSING):
        assert escape_markdown(name) in card


def test_a_table_of_the_card_has_as_many_cells_in_each_row(facts: Facts) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render_card(facts), flags=re.MULTILINE)
    assert len(tables) == 8
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


def test_the_page_carries_its_facts_as_json(facts: Facts, nothing: Facts) -> None:
    found = json.loads(Tags(render_page(facts)).json["facts"])
    assert found == facts.as_dict()
    assert found["gaps"][0]["estimate"] == {"value": 0.02, "low": 0.0, "high": 0.06}
    assert found["gaps"][2]["estimate"]["value"] is None, "NaN is no JSON"
    plots = json.loads(Tags(render_page(facts)).json["plots"])
    assert plots["forest"]["data"][1]["x"] == [2.0, 13.0]
    assert json.loads(Tags(render_page(nothing)).json["plots"]) == {}


def test_a_page_without_facts_names_commands(nothing: Facts) -> None:
    shown, card = Tags(render_page(nothing)).text, render_card(nothing)
    assert "python train.py certify" in shown
    assert "No S." in shown
    assert "No S." in card


def test_missing_packages_are_named(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_PACKAGES", ("jinja2", "no_such_package"))
    with pytest.raises(InputError, match=r"needs no_such_package.*\[report\]"):
        write_report(facts, tmp_path)
    files, hint = end_with_report(lambda: facts, tmp_path)
    assert files == []
    assert "needs no_such_package" in hint


def test_a_command_without_facts_writes_nothing(tmp_path: Path) -> None:
    assert end_with_report(lambda: None, tmp_path) == ([], "")
    assert list(tmp_path.iterdir()) == []
