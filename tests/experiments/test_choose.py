"""Choosing, comparing and ranking settings, on tables whose answer is known."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.experiments import Setting
from fairrf_lightning.experiments.choose import difference, mean_interval
from paper.choose import choose

DECISIONS = {"val_balanced_acc": 0.7, "val_positive_share": 0.3, "method_steps": 9}


def runs(*points: tuple[float, float, float, float], method: str = "fairrf", seeds: int = 2) -> pd.DataFrame:
    """Return runs of settings given as (eta, accuracy, dEO, dDP), the same on validation and test."""
    rows: list[dict[str, Any]] = []
    for eta, acc, eo_gap, dp_gap in points:
        measures = {"acc": acc, "eo_gap": eo_gap, "dp_gap": dp_gap}
        row = setting_row(eta=eta, method=method) | DECISIONS
        row |= {f"{stage}_{name}": value for stage in ("val", "test") for name, value in measures.items()}
        rows += [row | {"seed": seed} for seed in range(seeds)]
    return pd.DataFrame(rows)


def setting_row(**options: Any) -> dict[str, Any]:
    """Return the columns of a setting as a row of results has them."""
    return Setting(related=("age",), **options).as_row(SyntheticDataModule(n_rows=10))


VANILLA = runs((0.0, 0.85, 0.10, 0.20), method="vanilla")
FAIR = runs((0.3, 0.848, 0.02, 0.15), (0.6, 0.845, 0.05, 0.13), (1.0, 0.80, 0.00, 0.05))


def test_without_s_the_strongest_affordable_penalty_is_chosen() -> None:
    chosen = choose(FAIR, VANILLA, budget=0.01, rule="without S")
    assert set(chosen["eta"]) == {0.6}
    assert list(chosen["seed"]) == [0, 1]


def test_with_s_the_smallest_affordable_gaps_are_chosen() -> None:
    assert set(choose(FAIR, VANILLA, budget=0.01, rule="with S")["eta"]) == {0.3}
    assert set(choose(FAIR, VANILLA, budget=0.10, rule="with S")["eta"]) == {1.0}


@pytest.mark.parametrize("rule", ["with S", "without S"])
def test_if_nothing_is_affordable_the_most_accurate_is_chosen(rule: Any) -> None:
    assert set(choose(FAIR, VANILLA, budget=0.0001, rule=rule)["eta"]) == {0.3}


def test_intervals_are_those_of_the_t_distribution() -> None:
    values = np.array([1.0, 2.0, 4.0, 5.0])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = mean_interval(values)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert str(mean_interval([0.5, 0.5])) == "+0.500 [+0.500, +0.500]"
    assert np.isnan(mean_interval([1.0]).low)


def test_differences_are_paired_by_seed() -> None:
    one = pd.DataFrame({"seed": [0, 1, 2], "x": [1.0, 10.0, 100.0]})
    other = pd.DataFrame({"seed": [2, 1, 0], "x": [99.0, 9.0, 0.0]})
    assert difference(one, other, "x") == pytest.approx((1.0, 1.0, 1.0))
