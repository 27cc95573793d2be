"""Tables fit 80 columns and show text as it is."""

from __future__ import annotations

import pandas as pd
import pytest

from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.messages import shell_command


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_frame_is_printed_with_numbers_on_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"group": ["[red]a", "b"], "rows": [1200, 7], "rate": [0.5, float("nan")]})
    print_table(frame, title="Rates of [b]")
    shown = capsys.readouterr().out
    assert "Rates of [b]" in shown
    assert "[red]a" in shown
    assert "1,200 │ 0.5000" in shown
    assert "    7 │      -" in shown


def test_rows_may_be_mappings_or_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"a": 1, "b": "x"}, {"a": None}])
    print_table([(1, True)], columns=["one", "two"], missing="none")
    shown = capsys.readouterr().out
    for part in ("a ┃ b", "1 │ x", "- │ -", "one ┃ two", "yes"):
        assert part in shown


def test_long_names_are_folded_and_numbers_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    names = {f"a long header {number}": [0.12345] * 2 for number in range(7)}
    print_table(pd.DataFrame({"group": ["x" * 100, "y"]} | names))
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    assert shown.count("0.1235") == 14


def test_lines_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = "runs/a:100:b [bold] " + "x" * 100
    print_lines(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_terminal_breaks_sentences_between_words_and_no_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence, command = "a sentence of words " * 8, f"{shell_command('report', 'x' * 90)}"
    print_lines(sentence)
    assert capsys.readouterr().out == f"{sentence}\n", "a pipe gets it in one line"
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    print_lines(sentence, command, f"Train with them: {shell_command('fit', '--data', 'adult', 'y' * 60)}")
    *broken, first, second = capsys.readouterr().out.splitlines()
    assert len(broken) > 1
    assert all(len(line) <= 80 and line.split() for line in broken)
    assert " ".join(" ".join(broken).split()) == sentence.strip()
    assert first == command
    assert second.endswith("y" * 60)
