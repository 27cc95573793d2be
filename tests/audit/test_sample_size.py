"""Sample sizes: by simulation, in the worst case and from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairrf_lightning.audit.sample_size import mean_width, plan_survey, rows_needed, worst_case
from fairrf_lightning.cli import main
from fairrf_lightning.metrics.intervals import RateSample, gap_interval
from tests.audit.rows import write_predictions
from tests.conftest import Refused


@pytest.mark.usefixtures("cli")
def test_a_group_too_small_for_the_pilot_does_not_ask_for_labels(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_predictions()
    rows.loc[rows.index[:3], "sex"] = "x"
    rows.to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    main(["labels", "--width", "0.2", "--pilot", "audit/audit.json"])
    rates = re.findall(r"at rates ([^)]*)\)", capsys.readouterr().out)
    assert len(rates[0].split(",")) == rows["sex"].nunique() - 1


@pytest.mark.parametrize(
    ("shares", "rates"), [((0.3, 0.7), (0.3, 0.2)), ((0.1, 0.2, 0.3, 0.2, 0.2), (0.2, 0.3, 0.4, 0.4, 0.3))]
)
def test_so_many_labels_give_the_width(shares: tuple[float, ...], rates: tuple[float, ...]) -> None:
    needed = rows_needed(0.1, shares, rates)
    metric_widths = []
    rng = np.random.default_rng(5)
    for _ in range(40):  # sampled anew, groups at random too, and measured by the interval that audits use
        counts = rng.multinomial(needed, shares)
        metric_widths.append(interval_width(counts, rng.binomial(counts, rates)))
    assert np.mean(metric_widths) == pytest.approx(0.1, rel=0.05)
    assert mean_width(needed // 2, shares, rates, 0.95) > 0.12


def interval_width(counts: np.ndarray[Any, Any], successes: np.ndarray[Any, Any]) -> float:
    sums, totals = (torch.from_numpy(part).double().unsqueeze(0) for part in (successes, counts))
    low, high = gap_interval(RateSample.of_sums(totals, sums))
    return float(high - low)


def test_the_worst_case_is_enough() -> None:
    assert mean_width(worst_case(0.1, [0.4, 0.6]), [0.4, 0.6], [0.6, 0.4], 0.95) <= 0.1


@pytest.mark.parametrize(
    ("shares", "hard"),
    [  # the hardest rates of a long random search, and some of their kind
        ((1 / 3, 1 / 3, 1 / 3), (0.653, 0.5, 0.5)),
        ((0.2, 0.2, 0.2, 0.2, 0.2), (0.467, 0.556, 0.542, 0.536, 0.47)),
        ((0.05, 0.05, 0.05, 0.05, 0.8), (0.563, 0.554, 0.423, 0.416, 0.506)),
    ],
)
def test_the_worst_case_of_several_groups_is_enough(
    shares: tuple[float, ...], hard: tuple[float, ...]
) -> None:
    rows = worst_case(0.1, shares)
    rng = np.random.default_rng(0)
    for _ in range(5):
        rates = (hard + rng.normal(0, 0.02, len(hard))).tolist()
        assert mean_width(rows, shares, rates, 0.95) < 0.102
    needed = mean_width(rows, shares, hard, 0.95)
    assert 0.095 < needed < 0.102, "nor much more than enough"


@pytest.mark.usefixtures("cli")
def test_labels_command(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions()
    main(["labels", "--width", "0.1"])
    assert (
        "1,537 rows with a known S give dDP a 95 % interval of width 0.1 (whatever" in capsys.readouterr().out
    )
    main(["labels", "--width", "0.2", "--shares", "0.3,0.3,0.4"])
    assert "at the hardest rates found by simulation" in capsys.readouterr().out
    main(["labels", "--width", "0.2", "--gap", "dEO", "--rates", "0.6,0.4", "--base_rates", "0.3,0.2"])
    assert "at rates 0.600, 0.400" in capsys.readouterr().out
    main(["audit", "--predictions", "p.csv", "--groups", "race,sex"])
    for gap in ("dDP", "dEO"):
        main(["labels", "--width", "0.2", "--pilot", "audit/audit.json", "--grouping", "sex", "--gap", gap])
        assert f"rows with a known S give {gap} by sex a 95 % interval" in capsys.readouterr().out
    main(["labels", "--width", "0.2", "--pilot", "audit/audit.json"])
    assert "give dDP by race a" in capsys.readouterr().out, "the default is not silent"


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--width 2", "--width 2.0"),
        ("--width 0.1 --shares 0.9,0.9", "--shares 0.9,0.9"),
        ("--width 0.1 --shares a,b", "--shares: expected float. Got value: a"),
        ("--width 0.1 --rates 0.1", "--rates 0.1"),
        ("--width 0.1 --gap dEO --base_rates 0,0.5", "--base_rates 0,0.5"),
        ("--width 0.1 --pilot none.json", "not an audit.json"),
        ("--width 0.1 --pilot few.json", "not two groups"),
        ("--width 0.1 --pilot few.json --grouping sex", "--grouping sex"),
        ("--width 0.000001 --rates 0.3,0.2", "more than"),
    ],
)
def test_bad_options_of_labels_are_told(options: str, message: str, refused: Refused) -> None:
    Path("few.json").write_text(
        '{"schema": 1, "level": 0.95, "min_rows": 10, "rows": 0, "source": {}, "overall": {}, "notices": [], '
        '"groupings": [{"name": "race", "groups": []}]}',
        encoding="utf-8",
    )
    assert message in refused(["labels", *options.split()])


@pytest.mark.parametrize("randomized", [0.0, 0.25])
def test_planned_survey_gives_the_width(randomized: float) -> None:
    """Simulate the prediction-powered estimate with the planned number of people."""
    rng = np.random.default_rng(0)
    share, width = 0.4, 0.2
    size = 200_000
    x = rng.random(size)
    member = np.clip(share + 0.6 * (x - 0.5), 0, 1)  # P(S = 1 | x)
    decided = x < 0.3
    explained = float(member.var() / (share * (1 - share)))
    plan = plan_survey(
        width, shares=(share, 1 - share), selected=0.3, explained=explained, randomized=randomized
    )
    known = np.cov(decided, member)[0, 1]
    found = []
    for _ in range(400):
        drawn = rng.integers(0, size, plan.people)
        answers = (rng.random(plan.people) < member[drawn]).astype(float)
        coin = rng.random(plan.people) < randomized
        answers = np.where(coin, rng.integers(0, 2, plan.people), answers)
        corrected = (answers - randomized / 2) / (1 - randomized)
        residual = (corrected - member[drawn]) * (decided[drawn] - decided.mean())
        found.append((known + residual.mean()) / (share * (1 - share)))
    assert 2 * 1.96 * np.std(found) == pytest.approx(width, rel=0.12)
