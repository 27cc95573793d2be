from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import contingency

from fairrf_lightning.errors import InputError
from fairrf_lightning.suggest import Association, associations, propose
from fairrf_lightning.suggest.association import design, joint_association


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
    held = chance = 0
    for seed in range(20):
        table = people(size=300, seed=seed + 2)
        found = associations({name: table[name] for name in ("age", "noise", "name")}, table["sex"], seed)
        held += found["age"].low <= truth <= found["age"].high
        chance += min(found["noise"].p_value, found["name"].p_value) <= 0.05
        assert found["age"].low <= found["age"].value <= found["age"].high
    assert held >= 16
    assert chance <= 4


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
        "income": assoc(0.2),
    }
    target = {"zip": assoc(0.3), "income": assoc(0.7)}
    found = {one.name: one.verdict for one in propose(sensitive, target)}
    assert list(found) == ["copy", "zip", "luck", "income", "small"]
    assert found == {"copy": "stand-in", "zip": "take", "luck": "noise", "income": "costly", "small": "weak"}
    assert {one.name: one.verdict for one in propose(sensitive, {})}["income"] == "take"
