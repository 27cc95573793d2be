"""The page and the card as text: the same facts, and no markup from names."""

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairrf_lightning.errors import InputError
from fairrf_lightning.report import Facts, write_report, write_report_if_installed
from fairrf_lightning.report.page import escape_markdown, render_card, render_page
from fairrf_lightning.report.sections import Section, sections
from tests.report.conftest import CLOSING, HOSTILE


@pytest.fixture(scope="module")
def parts(facts: Facts) -> Sequence[Section]:
    """Return the sections of a report with everything, drawn once."""
    return sections(facts)


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
    assert files[0].stat().st_size < 500_000


def test_names_of_the_users_are_never_markup(facts: Facts, parts: Sequence[Section]) -> None:
    tags = Tags(render_page(facts, parts))
    assert "img" not in tags.found
    assert tags.found.count("script") == 1, "data, which nothing runs"
    assert HOSTILE in tags.text
    assert CLOSING in tags.text
    card = render_card(facts, parts)
    assert "<img" not in card
    assert "<script" not in card


def test_the_page_and_the_card_say_the_same(facts: Facts, parts: Sequence[Section]) -> None:
    shown, card = Tags(render_page(facts, parts)).text, render_card(facts, parts)
    said = [facts.verdict.title, "85.2 %", "84.6 to 85.8", "2.00", "0.00 to 6.00", "9.00"]
    said += [
        "less accurate, beyond noise",
        "85.7 %",
        "22.0 %",
        "25.0 %",
        "0.0120",
        "0.0340",
        "\N{MINUS SIGN}65 %",
    ]
    said += ["fairer, beyond noise", "no difference shown", "4,000", "30.00", "25.00 to 36.00", "22,611"]
    said += ["certified to be at most 20.0 points", "share of rows", "0.250", "A note.", "2.13.0"]
    said += ["0.5000", "83.80", "chosen"]
    for words in said:
        assert words in shown, words
        assert words in card, words
    for name in (HOSTILE, CLOSING):
        assert escape_markdown(name) in card


def test_a_table_of_the_card_has_as_many_cells_in_each_row(facts: Facts, parts: Sequence[Section]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render_card(facts, parts), flags=re.MULTILINE)
    assert len(tables) == sum(len(part.tables) + bool(part.pairs) for part in parts) == 11
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


def test_the_page_carries_its_facts_as_json(facts: Facts, parts: Sequence[Section]) -> None:
    found = json.loads(Tags(render_page(facts, parts)).json["facts"])
    assert found == facts.as_dict()
    assert found["gaps"][0]["estimate"] == {"value": 0.02, "low": 0.0, "high": 0.06}
    assert found["gaps"][2]["estimate"]["value"] is None, "NaN is no JSON"


def test_a_plot_has_its_numbers_in_words_and_in_tooltips(parts: Sequence[Section]) -> None:
    plots = {plot.name: plot for part in parts for plot in part.plots}
    assert "dEO \N{MIDDLE DOT} sex: 2.0 points, 95 % interval 0.0 to 6.0." in plots["forest"].alt
    for svg in (plots["forest"].svg, plots["forest"].wide):
        assert "FairRF, eta 0.6: 2.0 points, 95 % interval 0.0 to 6.0</title>" in svg
        assert "vanilla: 9.0 points, 95 % interval 5.0 to 13.0</title>" in svg
    for epoch, value in enumerate((0.3, 0.4, 0.5)):
        assert f"<title>age, epoch {epoch}: {value:.3f}</title>" in plots["lambda"].svg


def test_ids_are_unique_links_are_local_and_colours_are_variables(
    facts: Facts, parts: Sequence[Section]
) -> None:
    body = render_page(facts, parts).partition("<body>")[2].partition("<script")[0]
    ids = re.findall(r'\bid="([^"]+)"', body)
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="([^"]+)"', body) + re.findall(r"url\(([^)]+)\)", body)
    assert {link.partition("#")[0] for link in links} == {""}
    assert {link[1:] for link in links} <= set(ids)
    assert not re.findall(r"(?:fill|stroke): ?#", body)


def test_a_section_needs_nothing_but_itself(facts: Facts) -> None:
    own = Section("own", "My section", ["A paragraph."], points=["A point."])
    for text in (render_page(facts, [own]), render_card(facts, [own])):
        assert all(words in text for words in ("My section", "A paragraph.", "A point."))


def test_a_report_without_notices_has_no_such_section(facts: Facts, parts: Sequence[Section]) -> None:
    assert 'id="notices"' not in render_page(facts, parts)
    assert "Read this first" not in render_card(facts, parts)


def test_columns_are_named_as_related_and_not_known_to_be(facts: Facts, parts: Sequence[Section]) -> None:
    text = render_page(facts, parts)
    assert "related to S" not in text
    assert '<th scope="col">named as related</th>' in text
    assert "that they are associated with S was not checked" in text
    assert "related features, as named by the user" in render_card(facts, parts)


def test_a_page_without_facts_names_commands(nothing: Facts) -> None:
    parts = sections(nothing)
    shown, card = Tags(render_page(nothing, parts)).text, render_card(nothing, parts)
    assert "python train.py certify" in shown
    assert "No S." in shown
    assert "No S." in card


def test_missing_packages_are_named(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.messages._REPORT_PACKAGES", ("jinja2", "no_such_package"))
    with pytest.raises(InputError, match=r"needs no_such_package.*\[report\]"):
        write_report(facts, tmp_path)
    files, hint = write_report_if_installed(lambda: facts, tmp_path)
    assert files == []
    assert "needs no_such_package" in hint


def test_a_command_without_facts_writes_nothing(tmp_path: Path) -> None:
    assert write_report_if_installed(lambda: None, tmp_path) == ([], "")
    assert list(tmp_path.iterdir()) == []
