from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.datamodules.synthetic import Population
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import correlation_interval

MANY = 100_000
shares = st.floats(0.2, 0.8)


def correlation(one: Any, other: Any) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def test_table_is_as_promised(synthetic: SyntheticDataModule) -> None:
    table = synthetic.read()
    assert len(table) == 20_000
    assert table.columns.tolist() == [*synthetic.correlations, "group", "label"]
    rates = table.groupby("group", observed=True)["label"].mean()
    assert rates["a"] == pytest.approx(0.25, abs=0.015)
    assert rates["b"] == pytest.approx(0.55, abs=0.015)
    assert synthetic.related == ["height", "income", "hours"]
    assert synthetic.group_names == ["a", "b"]


def test_same_options_give_the_same_table() -> None:
    first, again, other = (SyntheticDataModule(n_rows=50, table_seed=seed).read() for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)


@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), shares, st.floats(-0.15, 0.15), shares)
def test_correlations_hold(
    with_s: float, with_y: float, base_rate: float, bias: float, group_share: float
) -> None:
    population = Population({"x": (with_s, with_y)}, base_rate, bias, group_share)
    features, groups, labels = population.sample(MANY, seed=0)
    tolerance = 5 / np.sqrt(MANY)
    assert correlation(features["x"], groups) == pytest.approx(with_s, abs=tolerance)
    assert correlation(features["x"], labels) == pytest.approx(with_y, abs=tolerance)
    assert correlation(groups, labels) == pytest.approx(population.label_correlation, abs=tolerance)
    assert labels.mean() == pytest.approx(base_rate, abs=tolerance)
    assert features["x"].var() == pytest.approx(1, abs=3 * tolerance)


@given(st.floats(-0.99, 0.99), st.floats(-0.99, 0.99))
def test_what_theorem_1_excludes_is_refused(with_s: float, with_y: float) -> None:
    between = Population({}).label_correlation
    low, high = correlation_interval(torch.tensor(with_s).double(), torch.tensor(between).double())
    if low + 1e-6 < with_y < high - 1e-6:
        Population({"x": (with_s, with_y)})
    elif with_y < low - 1e-6 or with_y > high + 1e-6:
        with pytest.raises(InputError, match=r"'x' cannot have correlations .*Theorem 1"):
            Population({"x": (with_s, with_y)})


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_best_probabilities_are_calibrated(noise: float) -> None:
    population = SyntheticDataModule(label_noise=noise).population
    features, _, labels = population.sample(MANY, seed=0)
    probabilities = population.probabilities(features)
    assert probabilities.min() >= noise
    bins = np.digitize(probabilities, np.linspace(0, 1, 11))
    for number in np.unique(bins):
        chosen = bins == number
        spread = 5 / np.sqrt(chosen.sum())
        assert labels[chosen].mean() == pytest.approx(probabilities[chosen].mean(), abs=spread)


def test_noise_flips_its_share_of_the_labels() -> None:
    clean = Population({}).sample(MANY, seed=0)[2]
    noisy = Population({}, label_noise=0.1).sample(MANY, seed=0)[2]
    assert (clean != noisy).mean() == pytest.approx(0.1, abs=0.003)


def test_checkpoint_keeps_its_people() -> None:
    trained = SyntheticDataModule(n_rows=200, correlations={"x": (0.5, 0.2), "y": (0.0, 0.3)}, table_seed=3)
    tested = SyntheticDataModule(n_rows=100, seed=5)
    tested.load_state_dict(trained.state_dict())
    assert torch.equal(tested._parts["test"]["inputs"], trained._parts["test"]["inputs"])
    assert tested.state_dict() == trained.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rows": 0}, "n_rows = 0: expected 1 or more"),
        ({"table_seed": -1}, "table_seed = -1: expected 0 or more"),
        ({"base_rate": 1.0}, "base_rate must be a share"),
        ({"group_share": float("nan")}, "group_share must be a share"),
        ({"label_noise": 0.5}, "label_noise must be at least 0 and less than 0.5"),
        ({"bias": 0.9}, "bias = 0.9 gives the groups base rates of -0.05 and 0.85"),
        ({"correlations": {"group": (0.1, 0.1)}}, "group cannot be the name of a feature"),
        ({"correlations": {"x": (0.0, 0.5)}}, "related is empty"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyntheticDataModule(**options)
