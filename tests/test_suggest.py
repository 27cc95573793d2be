"""Suggestions: the measure of association, the rule, the words and the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import contingency

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.suggest import (
    Association,
    _indicators,
    _orthonormal,
    _variance,
    associations,
    design,
    effect_limits,
    joint_association,
    propose,
    suggest,
)
from tests.conftest import Refused


def people(size: int = 800, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, size)
    job = np.where(rng.uniform(size=size) < 0.7, sex, rng.integers(0, 4, size))
    return pd.DataFrame(
        {
            "sex": np.array(["f", "m"])[sex],
            "job": pd.Categorical.from_codes(job, categories=pd.Index(list("abcd"))),
            "age": 40 + 3 * sex + rng.normal(size=size) * 10,
            "noise": rng.normal(size=size),
            "name": [f"n{number}" for number in rng.integers(0, 300, size)],
        }
    )


def test_measure_is_the_correlation_or_cramers_v_but_for_chance() -> None:
    table = people(size=1500)
    found = associations({name: table[name] for name in ("age", "job")}, table["sex"])
    rho = np.corrcoef(table["age"], table["sex"] == "m")[0, 1]
    assert found["age"].value == pytest.approx(np.sqrt(rho**2 - 1 / 1499), abs=1e-9)
    cramers_v = contingency.association(pd.crosstab(table["job"], table["sex"]).to_numpy())
    assert found["job"].value == pytest.approx(np.sqrt(cramers_v**2 - 3 / 1499), abs=1e-9)


def test_intervals_hold_the_population_s_value_and_noise_is_noise() -> None:
    whole = people(size=200_000, seed=1)
    truth = abs(np.corrcoef(whole["age"], whole["sex"] == "m")[0, 1])
    draws, held, chance = 100, 0, 0
    for seed in range(draws):
        table = people(size=300, seed=seed + 2)
        found = associations({name: table[name] for name in ("age", "noise")}, table["sex"], seed)
        held += found["age"].low <= truth <= found["age"].high
        chance += found["noise"].low > 0
        assert found["age"].low <= found["age"].value <= found["age"].high
        alone = min(one.p_value for one in found.values()) / 2  # Holm doubles the smaller of two
        strongest = min(found.values(), key=lambda one: one.p_value)
        assert (strongest.low > 0) == (alone < 0.05)
    assert 89 <= held <= 99
    assert 1 <= chance <= 11


def test_a_column_beyond_noise_has_an_interval_that_starts_above_zero() -> None:
    rng = np.random.default_rng(3)
    starts = []
    for _ in range(60):
        sex = pd.Series(rng.integers(0, 2, 300))
        found = associations({"x": pd.Series(0.4 * sex + rng.normal(size=300))}, sex)["x"]
        starts += [found.low] if found.p_value < 0.05 else []
    assert len(starts) > 45
    assert min(starts) > 0.005  # so that two digits show it


@pytest.mark.parametrize(("x", "df"), [(3.0, 1.0), (50.0, 7.3), (2500.0, 29.0), (5000.0, 4.0)])
def test_limits_are_where_the_tails_are(x: float, df: float) -> None:
    low, high = effect_limits(x, df)
    if low > 2 * stats.chi2.ppf(0.95, df):  # far from 0 the tails are equal
        assert stats.ncx2.sf(x, df, low) == pytest.approx(0.025, abs=1e-6)
        assert stats.ncx2.cdf(x, df, high) == pytest.approx(0.025, abs=1e-6)
    for point in (0.999, 1.001):
        assert (effect_limits(point * stats.chi2.ppf(0.95, df), df)[0] > 0) == (point > 1)


def test_the_variance_with_an_effect_is_that_of_resamples() -> None:
    rng = np.random.default_rng(0)
    rare = rng.random(2000) < 0.1
    table = pd.DataFrame({"job": np.where(rng.random(2000) < 0.05 + 0.4 * rare, "x", "y"), "rare": rare})

    def squared_angle(rows: pd.DataFrame) -> float:
        phi = np.corrcoef(rows["job"] == "x", rows["rare"])[0, 1]
        return float(np.arcsin(phi) ** 2)

    resamples = [squared_angle(table.iloc[rng.integers(0, 2000, 2000)]) for _ in range(800)]
    found = _variance(_orthonormal(design(table["job"])), _indicators(table["rare"]))
    assert found == pytest.approx(np.var(resamples), rel=0.15)
    without_effect = 4 * squared_angle(table) / 2000
    assert found > 1.5 * without_effect


def test_a_column_with_a_category_for_each_row_shows_nothing() -> None:
    found = associations({"id": pd.Series(list("abcdefgh"))}, pd.Series([0, 1] * 4))["id"]
    assert (found.value, found.low, found.high, found.p_value) == (0.0, 0.0, 1.0, 1.0)


def test_corrected_p_values_are_those_of_holm() -> None:
    table = people(size=300)
    columns = {name: table[name] for name in ("age", "noise", "name")}
    alone = {
        name: associations({name: column}, table["sex"])[name].p_value for name, column in columns.items()
    }
    together = associations(columns, table["sex"])
    ordered = sorted(alone, key=lambda name: alone[name])
    expected = np.maximum.accumulate([min(1.0, (3 - i) * alone[name]) for i, name in enumerate(ordered)])
    assert [together[name].p_value for name in ordered] == pytest.approx(expected.tolist())


def test_joint_association_is_at_least_the_best_single_one() -> None:
    table = people(size=1500)
    table["group"] = pd.Series(np.where(table["job"] == "c", "x", table["sex"]))
    columns = {name: table[name] for name in ("age", "job")}
    single = associations(columns, table["group"])
    assert joint_association(columns, table["group"]) > max(one.value for one in single.values()) - 0.01


def test_missing_numbers_and_rows_without_s() -> None:
    table = people()
    table.loc[::3, "age"] = np.nan
    table.loc[::5, "sex"] = None
    assert design(table["age"]).shape == (800, 2)
    found = associations({"age": table["age"], "empty": pd.Series([np.nan] * 800)}, table["sex"])
    assert 0 < found["age"].value < 0.4
    assert found["empty"].value == 0
    with pytest.raises(InputError, match="single value"):
        associations({"age": table["age"]}, pd.Series(["f"] * 800, name="sex"))


def assoc(value: float, p_value: float = 0.001) -> Association:
    return Association(value, value, value, p_value)


def test_rule_of_the_proposal() -> None:
    sensitive = {
        "zip": assoc(0.4),
        "copy": assoc(0.97),
        "small": assoc(0.05),
        "luck": assoc(0.3, 0.2),
        "noise": Association(0.04, 0.0, 0.2, 0.9),
        "income": assoc(0.2),
    }
    target = {"zip": assoc(0.3), "income": assoc(0.7)}
    found = {one.name: one.advice for one in propose(sensitive, target)}
    assert list(found) == ["copy", "zip", "luck", "income", "small", "noise"]
    assert found == {
        "copy": "stand-in",
        "zip": "take",
        "luck": "unclear",  # its own interval leaves out 0
        "income": "costly",
        "small": "weak",
        "noise": "noise",
    }
    assert {one.name: one.advice for one in propose(sensitive, {})}["income"] == "take"


def test_the_function_returns_the_ranking() -> None:
    found = suggest(SyntheticDataModule(n_rows=3000), sensitive="group")
    assert set(found.related) == {"height", "income", "hours"}
    assert repr(found).startswith("Suggestion(related=['height'")
    assert list(found.table()) == ["column", "with group", "with label", "related?"]
    assert "cannot act on the rest" in found._repr_html_()
    unknown = suggest(SyntheticDataModule(n_rows=3000))
    assert unknown.related == []
    assert list(unknown.table()) == ["column", "with label"]


Run = Callable[[str], str]


@pytest.fixture
def wide(cli: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return the command line with wide tables."""
    monkeypatch.setenv("COLUMNS", "200")
    return cli


@pytest.fixture
def run(wide: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> Run:
    applicants(600, 0).drop(columns="sex").to_csv("people.csv", index=False)
    applicants(200, 1).drop(columns="hired").to_csv("audit.csv", index=False)

    def call(options: str) -> str:
        wide(f"suggest {options}")
        return capsys.readouterr().out

    return call


def applicants(size: int, seed: int) -> pd.DataFrame:
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
        "--data.related=first name,height",
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
    related = shlex.split(printed)[-1].removeprefix("--data.related=").split(",")
    assert {"decile_score", "priors_count", "age"} <= set(related)
    assert "days_b_screening_arrest" not in related
    assert "leave them out first if accuracy suffers: decile_score" in printed


def test_without_s_it_says_what_cannot_be_known(run: Run) -> None:
    printed = run(TABLE)
    assert "Without S it cannot be known" in printed
    assert "--data.related" not in printed
    assert printed.index("skill") < printed.index("luck")


def test_nothing_is_proposed_where_nothing_is_related(run: Run) -> None:
    frame = applicants(200, 2)[["skill", "luck"]].assign(sex=np.resize(["f", "m"], 200))
    frame.to_csv("other.csv", index=False)
    assert "No column is proposed" in run(f"{TABLE} --audit_sample other.csv --sensitive sex")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--audit-sample audit.csv", "no data"),
        (f"{TABLE} --audit-sample audit.csv", "column of S by --sensitive"),
        (f"{TABLE} --audit-sample audit.csv --sensitive gender", "there is no column 'gender'"),
        (f"{TABLE} --audit-sample few.csv --sensitive sex", "5 rows where sex is known"),
        (f"{TABLE} --audit-sample strange.csv --sensitive sex", "shares no column"),
        (f"{TABLE} --sensitive gender", "--sensitive: there is no column 'gender'"),
        (f"{TABLE} --min_association 2", "--min_association 2.0"),
        (f"{TABLE} --max_ratio 0", "--max_ratio 0.0"),
        ("--data table --data.path . --data.target hired", "not a directory"),
    ],
)
@pytest.mark.usefixtures("run")
def test_errors_are_a_few_lines(options: str, message: str, refused: Refused) -> None:
    applicants(5, 3).to_csv("few.csv", index=False)
    applicants(50, 3)[["sex"]].assign(other=1).to_csv("strange.csv", index=False)
    assert message in refused(f"suggest {options}")


@pytest.fixture
def table(wide: Callable[[str], None]) -> pd.DataFrame:
    del wide  # for its folder
    rng = np.random.default_rng(5)
    columns = {f"x{number}": rng.normal(size=600) for number in range(20)}
    frame = pd.DataFrame(columns | {"hired": rng.integers(0, 2, 600)})
    frame["SEX"] = np.where(0.17 * frame["x0"] + rng.normal(size=600) > 0, "f", "m")
    frame.to_csv("people.csv", index=False)
    return frame


def suggested(capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, tuple[float, float, str]]]:
    data = ["--data", "table", "--data.path", "people.csv", "--data.target", "hired", "--data.drop", "[SEX]"]
    main(["suggest", *data, "--audit-sample", "people.csv", "--sensitive", "SEX"])
    printed = capsys.readouterr().out
    pattern = r"│ (x\d+) +│ [\d.]+ \(([\d.]+) to ([\d.]+)\) │.*│ ([\w :?,]+?) +│\n"
    found = {name: (float(low), float(high), says) for name, low, high, says in re.findall(pattern, printed)}
    return printed, found


def test_nothing_proposed_is_no_claim_that_nothing_is_related(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    table["SEX"] = np.resize(["f", "m"], 600)
    table.to_csv("people.csv", index=False)
    printed, found = suggested(capsys)
    assert "cannot act" not in printed
    largest = max(found, key=lambda name: found[name][1])
    assert (
        "No column is proposed from these 600 rows. That is not evidence that no column is related to SEX: "
        f"by the intervals an association of up to {found[largest][1]:.2f} ({largest}) is possible."
    ) in printed


def test_an_interval_that_leaves_out_0_is_not_called_chance(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    del table
    printed, found = suggested(capsys)
    assert len(found) == 20
    apart = {name: says for name, (low, _, says) in found.items() if low > 0}
    assert "no: unclear" in apart.values(), "the data were chosen to have one"
    assert "no: chance?" not in apart.values()
    for name, says in apart.items():
        if says == "no: unclear":
            assert re.search(rf"'unclear': .*\b{name}\b.*it is one of 20", printed)
