"""``survey plan`` and ``survey draw``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fairrf_lightning.audit.sample_size import plan_survey
from tests.conftest import Printed, Refused

SYNTHETIC = "--data synthetic --data.seed 0"


def test_form_records_the_probability_and_is_never_overwritten(printed: Printed, refused: Refused) -> None:
    shown = printed(f"survey draw 60 {SYNTHETIC} --randomized 0.25 --sensitive S")
    assert "Wrote survey.csv: 60 people" in shown
    assert "Then correct takes a run and --survey survey.csv, or fit takes" in shown
    assert "251 to 1000: write down your own group" in Path("survey_instructions.txt").read_text("utf-8")
    form = pd.read_csv("survey.csv")
    assert form["randomized"].eq(0.25).all()
    form.assign(S="a").to_csv("survey.csv", index=False)
    before = Path("survey.csv").read_bytes()
    message = refused(f"survey draw 60 {SYNTHETIC} --sensitive S")
    assert "this file exists, with 60 answers, and is kept" in message
    assert Path("survey.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("survey dra", "no such command; did you mean 'draw'?"),
        ("survey draw 60", "name either the data (--data NAME) or a checkpoint"),
        (f"survey draw 60 {SYNTHETIC} --randomized 1", "expected a probability from 0 to 0.9"),
        (f"survey draw 60 {SYNTHETIC} --randomized 0.33333", "expected a multiple of 0.001"),
        ("survey plan 2", "--width 2.0: expected a width between 0 and 1"),
        ("survey plan 0.1 --explained -0.5", "--explained -0.5: expected a share from 0 to below 1"),
        ("survey plan 0.1 --selected 0", "--selected 0.0: expected a share between 0 and 1"),
    ],
)
def test_invalid_options(command: str, message: str, refused: Refused) -> None:
    assert message in refused(command)
    assert not list(Path().iterdir())


def test_plan_prints_the_number_of_people(printed: Printed) -> None:
    people = plan_survey(0.1, selected=0.2, shares=(0.33, 0.67), explained=0.4).people
    shown = printed("survey plan 0.1 --selected 0.2 --shares 0.33,0.67 --explained 0.4")
    assert f"{people:,} answers give dDP" in shown
