"""Front, choice and objectives, against Optuna's own front, brute force and NumPy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack
from fairrf_lightning.experiments.choose import pareto_front
from fairrf_lightning.experiments.search import choose_trial, params_of, trials_frame
from fairrf_lightning.experiments.space import S_FREE, WITH_S, Objective, parse_space
from fairrf_lightning.functional import Statistic
from fairrf_lightning.penalty import Given

MEASURE = "val_covariance"
DECISIONS = {"val_balanced_acc": 0.7, "val_positive_share": 0.3}  # decide on eligibility
SPACE = parse_space({"eta": {"low": 0, "high": 2}, "lr": [0.001, 0.01], "dropout": 0.3}, "test")
# Decisions that differ between rows, of a trial and of its vanilla model.
SOUND = {f"{of}{name}": [value] for of in ("", "vanilla_") for name, value in DECISIONS.items()}
SOUND["method_steps"] = [9]
# A coarse scale, so that ties come up often.
POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20)


def study_of(points: list[tuple[int, int]]) -> optuna.Study:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for accuracy, unfairness in points:
        study.add_trial(
            optuna.create_trial(
                values=[accuracy / 10, unfairness / 10],
                params={"eta": accuracy / 10 + 0.1},
                distributions={"eta": FloatDistribution(0, 2)},
                user_attrs=SOUND
                | {
                    "val_acc": [accuracy / 10],
                    MEASURE: [unfairness / 10],
                    "vanilla_val_acc": [0.4],
                    f"vanilla_{MEASURE}": [0.55],
                },
            )
        )
    return study


@settings(max_examples=60, deadline=None)
@given(points=POINTS)
def test_the_front_is_that_of_optuna(points: list[tuple[int, int]]) -> None:
    study = study_of(points)
    frame = pd.DataFrame(points, columns=["accuracy", "unfairness"]) / 10
    front = pareto_front(frame["accuracy"], frame["unfairness"])
    found = [tuple(frame.iloc[position]) for position in front]
    assert len(set(found)) == len(found)
    assert set(found) == {tuple(trial.values) for trial in study.best_trials}


@settings(max_examples=60, deadline=None)
@given(points=POINTS, budget=st.integers(0, 4))
def test_the_choice_is_the_fairest_within_the_budget_and_on_the_front(
    points: list[tuple[int, int]], budget: int
) -> None:
    frame = trials_frame(study_of(points).trials, SPACE, MEASURE)
    assert len(frame) == len(points) + 1  # one vanilla model
    chosen = choose_trial(frame, MEASURE, budget / 10 + 1e-9)[0]
    candidates = [*((a / 10, u / 10) for a, u in points), (0.4, 0.55)]
    affordable = [(-u, a) for a, u in candidates if a >= 0.4 - budget / 10 - 1e-9]
    assert (-chosen[MEASURE], chosen["val_acc"]) == pytest.approx(max(affordable))
    assert frame.index.get_loc(chosen.name) in pareto_front(frame["val_acc"], frame[MEASURE])


def trial(number: int, lr: float, accuracy: list[float], vanilla: list[float]) -> FrozenTrial:
    return optuna.create_trial(
        values=[0.5, 0.1],
        params={"eta": 0.5, "lr": lr},
        distributions={name: SPACE.distributions[name] for name in ("eta", "lr")},
        user_attrs={name: values * len(accuracy) for name, values in SOUND.items()}
        | {
            "val_acc": accuracy,
            MEASURE: [number / 10] * len(accuracy),
            "vanilla_val_acc": vanilla,
            f"vanilla_{MEASURE}": [0.9] * len(accuracy),
        },
    )


def test_the_budget_is_relative_to_the_best_vanilla_model() -> None:
    trials = [trial(1, 0.001, [0.7, 0.72], [0.71, 0.71]), trial(2, 0.01, [0.78, 0.8], [0.79, 0.81])]
    frame = trials_frame(trials, SPACE, MEASURE)
    assert frame["eta"].tolist() == [0.5, 0.5, 0, 0]
    assert frame["val_acc"].tolist() == pytest.approx([0.71, 0.79, 0.71, 0.8])
    assert frame["val_acc_std"].iloc[0] == pytest.approx(0.02 / 2**0.5)
    assert params_of(choose_trial(frame, MEASURE, 0.02)[0], SPACE) == {"eta": 0.5, "lr": 0.01}
    assert params_of(choose_trial(frame, MEASURE, 0.2)[0], SPACE) == {"eta": 0.5, "lr": 0.001}
    vanilla = choose_trial(frame, MEASURE, 0)[0]
    assert pd.isna(vanilla["trial"])
    assert SPACE.setting(params_of(vanilla, SPACE)).eta == 0
    assert frame["lr"].tolist() == [0.001, 0.01] * 2


def test_an_eta_that_is_not_searched_is_in_the_table_too() -> None:
    space = parse_space({"eta": 0.7, "lr": [0.001, 0.01]}, "test")
    done = optuna.create_trial(
        values=[0.5, 0.1],
        params={"lr": 0.01},
        distributions={"lr": space.distributions["lr"]},
        user_attrs=trial(1, 0.01, [0.5], [0.5]).user_attrs,
    )
    assert trials_frame([done], space, MEASURE)["eta"].tolist() == [0.7, 0.0]


def test_without_a_finished_trial_there_is_no_choice() -> None:
    failed = optuna.create_trial(state=TrialState.FAIL, user_attrs={"diverged": "not finite"})
    with pytest.raises(InputError, match="no trial could be measured: not finite"):
        trials_frame([failed], SPACE, MEASURE)
    with pytest.raises(InputError, match="no trial has finished"):
        trials_frame([], SPACE, MEASURE)


DATA = SyntheticDataModule(n_rows=1000, seed=0)


def stack(statistic: Statistic = "covariance", given: Given = "all") -> Stack:
    settings = [Setting(eta=eta, statistic=statistic, given=given) for eta in (0.0, 0.5, 2.0)]
    trained = Stack(lambda **_: DATA, settings, [0, 1], Schedule(epochs=2))
    trained.fit()
    return trained


@pytest.mark.parametrize("name", S_FREE)
def test_the_s_free_measure_is_the_mean_r_whatever_the_penalty_is(name: str) -> None:
    trained = stack("correlation", "positives")
    measured = Objective(name).measure(trained)
    assert set(measured) == {"val_acc", name, *DECISIONS}  # no gap leaks out
    (batch,) = trained.data.val_dataloader()
    with torch.no_grad():
        probs = trained.module(batch["inputs"]).sigmoid().double().numpy()
    rows = np.asarray(batch["target"][0, 0]) > (0.5 if name.endswith("positives") else -1)
    columns = [column for (column,) in DATA.related_columns.values()]
    related = batch["inputs"][0][:, columns].double().numpy()[rows]
    compare: Callable[..., Any] = np.corrcoef if "correlation" in name else partial(np.cov, ddof=0)
    for s, p in np.ndindex(2, 3):
        expected = np.mean([abs(compare(column, probs[s, p][rows])[0, 1]) for column in related.T])
        assert float(measured[name][s, p]) == pytest.approx(expected, abs=1e-6)


def test_by_default_it_is_what_the_grid_breaks_ties_by() -> None:
    trained = stack()
    values = trained.evaluate(["val"])
    assert not any(name.startswith("test_") for name in values)
    penalties = torch.stack([values[f"val_penalty/{name}"] for name in DATA.related])
    torch.testing.assert_close(Objective().measure(trained)["val_covariance"], penalties.mean(0))


def test_a_gap_is_measured_by_consent() -> None:
    objective = Objective.parse("with_s:val_dp_gap")
    assert objective.uses_sensitive
    assert set(objective.measure(stack())) == {"val_acc", "val_dp_gap", *DECISIONS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "val_dp_gap",
            "looks at S on the validation rows; if you may, say so by --objective with_s:val_dp_gap",
        ),
        ("with_s:val_covariance", "does not look at S; write --objective val_covariance"),
        ("val_covarance", "did you mean 'val_covariance'"),
        ("with_s:dp_gap", "did you mean 'with_s:val_dp_gap'"),
    ],
)
def test_other_objectives_are_explained(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Objective.parse(text)
    assert message in str(error.value)


def test_data_that_do_not_fit_are_refused() -> None:
    exposed = SyntheticDataModule(n_rows=100, expose_sensitive=True)
    with pytest.raises(InputError, match="expose_sensitive shows S"):
        Objective().check(exposed)
    for name in WITH_S:
        Objective(name).check(exposed)
