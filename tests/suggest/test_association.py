from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import contingency

from fairrf_lightning.errors import InputError
from fairrf_lightning.suggest import Association, associations, propose
from fairrf_lightning.suggest.association import (
    _indicators,
    _orthonormal,
    _variance,
    design,
    joint_association,
)
from fairrf_lightning.suggest.limits import chi_square_cdf, effect_limits


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


@pytest.mark.parametrize(
    ("x", "df", "effect"), [(3.0, 1.0, 2.0), (50.0, 7.3, 30.0), (2500.0, 29.0, 2400.0), (5000.0, 4.0, 5100.0)]
)
def test_limits_are_where_the_tails_are(x: float, df: float, effect: float) -> None:
    assert chi_square_cdf(x, df, effect) == pytest.approx(stats.ncx2.cdf(x, df, effect), abs=1e-8)
    assert chi_square_cdf(x, df) == pytest.approx(stats.chi2.cdf(x, df), abs=1e-8)
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
    found = {one.name: one.verdict for one in propose(sensitive, target)}
    assert list(found) == ["copy", "zip", "luck", "income", "small", "noise"]
    assert found == {
        "copy": "stand-in",
        "zip": "take",
        "luck": "unclear",  # its own interval leaves out 0
        "income": "costly",
        "small": "weak",
        "noise": "noise",
    }
    assert {one.name: one.verdict for one in propose(sensitive, {})}["income"] == "take"
