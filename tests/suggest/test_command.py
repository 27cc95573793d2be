"""``suggest`` as a user runs it, on COMPAS and on a table."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.cli import main

Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("COLUMNS", "200")
    people(600, 0).drop(columns="sex").to_csv("people.csv", index=False)
    people(200, 1).drop(columns="hired").to_csv("audit.csv", index=False)

    def suggest(options: str) -> str:
        main(["suggest", *options.split()])
        return capsys.readouterr().out

    return suggest


def people(size: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex, skill = rng.integers(0, 2, size), rng.normal(size=size)
    return pd.DataFrame(
        {
            "first name": np.where(rng.uniform(size=size) < 0.8, sex, 1 - sex) + 10,
            "skill": skill + 0.35 * sex,
            "height": 170 + 7 * sex + rng.normal(size=size) * 7,
            "luck": rng.normal(size=size),
            "title": np.array(["Ms", "Mr"])[sex],
            "sex": np.array(["f", "m"])[sex],
            "hired": (skill + rng.normal(size=size) / 2 > 0).astype(int),
        }
    )


TABLE = "--data table --data.path people.csv --data.target hired"


def test_sample_ranks_columns_and_the_proposal_can_be_pasted(run: Run) -> None:
    printed = run(f"{TABLE} --audit-sample audit.csv --sensitive sex")
    command = printed.rpartition("Train with them: python train.py ")[2].strip()
    assert shlex.split(command) == [
        "fit",
        *TABLE.split(),
        '--data.related=["first name", "height"]',
    ]
    verdicts = dict(re.findall(r"│ ([\w ]+?) +│.*│ ([\w :?,]+?) +│\n", printed))
    assert verdicts["title"] == "no: is S, drop it"
    assert verdicts["luck"] == "no: chance?"
    assert "Almost determines sex: title" in printed
    # what was proposed is accepted by fit
    with pytest.raises(SystemExit) as exit_info:
        main([*shlex.split(command), "--print_config"])
    assert exit_info.value.code == 0


def test_compas_is_told_of_its_own_proxies_by_validation_rows(run: Run) -> None:
    printed = run("--data compas --sensitive race")
    assert "race is known from the 1,234 validation rows" in printed
    related = json.loads(shlex.split(printed)[-1].removeprefix("--data.related="))
    assert {"decile_score", "priors_count", "age"} <= set(related)
    assert "days_b_screening_arrest" not in related
    assert "leave them out first if accuracy suffers: decile_score" in printed


def test_without_s_it_says_what_cannot_be_known(run: Run) -> None:
    printed = run(TABLE)
    assert "Without S it cannot be known" in printed
    assert "--data.related" not in printed
    assert printed.index("skill") < printed.index("luck")


def test_nothing_is_proposed_where_nothing_is_related(run: Run) -> None:
    frame = people(200, 2)[["skill", "luck"]].assign(sex=np.resize(["f", "m"], 200))
    frame.to_csv("other.csv", index=False)
    assert "No column is proposed" in run(f"{TABLE} --audit_sample other.csv --sensitive sex")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--audit-sample audit.csv", "no data"),
        (f"{TABLE} --audit-sample audit.csv", "say by --sensitive"),
        (f"{TABLE} --audit-sample audit.csv --sensitive gender", "there is no column 'gender'"),
        (f"{TABLE} --audit-sample few.csv --sensitive sex", "5 rows where sex is known"),
        (f"{TABLE} --audit-sample strange.csv --sensitive sex", "shares no column"),
        (f"{TABLE} --sensitive gender", "--sensitive: there is no column 'gender'"),
        (f"{TABLE} --min_association 2", "--min_association 2.0"),
        (f"{TABLE} --max_ratio 0", "--max_ratio 0.0"),
        ("--data table --data.path . --data.target hired", "not a directory"),
    ],
)
def test_errors_are_a_few_lines(
    options: str, message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    people(5, 3).to_csv("few.csv", index=False)
    people(50, 3)[["sex"]].assign(other=1).to_csv("strange.csv", index=False)
    with pytest.raises(SystemExit) as exit_info:
        run(options)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
