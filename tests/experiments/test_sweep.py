"""Front and choice, against Optuna's own front and brute force."""

import optuna
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.choose import pareto_front
from fairrf_lightning.experiments.space import parse_space
from fairrf_lightning.experiments.sweep import choose_trial, params_of, trials_frame

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
