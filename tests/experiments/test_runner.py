from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack, recommend, run_settings, summarise
from fairrf_lightning.experiments.choose import pareto_front
from fairrf_lightning.experiments.run import plan_stacks
from fairrf_lightning.methods import KSMOTE
from tests.experiments.test_choice import DECISIONS, setting_row

SHORT = Schedule(epochs=2)
DATA = partial(SyntheticDataModule, n_rows=1000, batch_size=128)


def test_one_row_for_each_setting_and_seed_in_their_order() -> None:
    settings = [Setting(eta=0.5), Setting(eta=0.0, backbone="linear"), Setting(related=("height",))]
    frame = run_settings(DATA, settings, [4, 2], SHORT)
    assert list(zip(frame["eta"], frame["seed"], strict=True)) == [
        (eta, seed) for eta in (0.5, 0.0, 0.3) for seed in (4, 2)
    ]
    assert (frame["data"] == "synthetic").all()
    assert frame["best_epoch"].isin([0, 1]).all()
    assert frame["test_acc"].between(0, 1).all()
    weights = frame[[f"lambda/{name}" for name in ("height", "income", "hours")]]
    assert weights.iloc[:2].sum(axis=1).to_numpy() == pytest.approx(1)
    assert weights.iloc[2:4].isna().all(axis=None)
    assert weights.iloc[4:].to_numpy()[:, 0] == pytest.approx(1)
    assert weights.iloc[4:, 1:].isna().all(axis=None)


def test_figures_do_not_depend_on_how_the_models_are_stacked() -> None:
    settings = [Setting(eta=eta) for eta in (0.1, 0.7, 1.5)]
    together = run_settings(DATA, settings, [0, 1], SHORT)
    apart = run_settings(DATA, settings, [0, 1], SHORT, max_models=1)
    pd.testing.assert_frame_equal(together, apart, atol=1e-4)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out" / "results.csv"
    settings = [Setting(eta=0.1), Setting(eta=0.7)]
    trained: list[list[Setting]] = []
    fit = Stack.fit

    def interrupted(self: Stack, *args: Any) -> None:
        if trained:
            raise KeyboardInterrupt
        trained.append(self.settings)
        fit(self, *args)

    monkeypatch.setattr(Stack, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_settings(DATA, settings, [0, 1], SHORT, path=path, max_models=2)
    assert len(pd.read_csv(path)) == 2
    monkeypatch.setattr(Stack, "fit", fit)
    steps: list[int] = []
    resumed = run_settings(DATA, settings, [0, 1], SHORT, path=path, max_models=2, advance=steps.append)
    assert steps == [4, 2, 2]
    pd.testing.assert_frame_equal(resumed, run_settings(DATA, settings, [0, 1], SHORT), atol=1e-6)
    assert [file for file in path.parent.iterdir() if file.suffix != ".lock"] == [path]


@pytest.mark.parametrize("change", ["seed", "setting", "schedule", "data"])
def test_other_seeds_settings_schedules_and_data_are_trained_anew(change: str, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    options: dict[str, Any] = {"seed": 0, "setting": Setting(), "schedule": SHORT, "data": DATA}
    others = {
        "seed": 1,
        "setting": Setting(beta=0.7),
        "schedule": Schedule(epochs=3),
        "data": partial(DATA, bias=0.1),
    }
    for chosen in (options, options | {change: others[change]}):
        run_settings(chosen["data"], [chosen["setting"]], [chosen["seed"]], chosen["schedule"], path=path)
    assert len(pd.read_csv(path)) == 2


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no results file"):
        run_settings(DATA, [Setting()], [0], SHORT, path=path)


def test_stacks_share_a_recipe_and_stay_below_the_limit() -> None:
    settings = [Setting(eta=eta) for eta in (0.1, 0.2, 0.3)] + [Setting(given="positives")]
    pairs = [(setting, seed) for setting in settings for seed in (0, 1)] + [(Setting(eta=0.4), 1)]
    planned = list(plan_stacks(pairs, max_models=4))
    assert [(len(some), seeds) for some, seeds in planned] == [
        (2, [0, 1]),
        (1, [0, 1]),
        (1, [0, 1]),
        (1, [1]),
    ]
    assert {(s, seed) for some, seeds in planned for s in some for seed in seeds} == set(pairs)
    with pytest.raises(InputError, match="max_models"):
        list(plan_stacks(pairs, max_models=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": -1.0}, "eta"),
        ({"beta": 0.0}, "beta"),
        ({"rule": "best"}, "rule"),
        ({"backbone": "mpl"}, "did you mean 'mlp'"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting(**options)


@pytest.mark.parametrize("options", [{"related": ("heigt",)}, {"remove": ("heigt",)}])
def test_unknown_features_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="did you mean 'height'"):
        Stack(DATA, [Setting(**options)], [0])


def test_the_recommendation_takes_the_largest_affordable_eta_without_looking_at_gaps() -> None:
    rows = [
        # eta, beta, accuracy, gap, R
        (0.0, 0.5, 0.850, 0.20, 0.30),
        (0.5, 0.5, 0.848, 0.05, 0.20),
        (1.0, 0.4, 0.842, 0.11, 0.12),
        (1.0, 0.8, 0.841, 0.10, 0.11),
        (2.0, 0.5, 0.800, 0.01, 0.05),
    ]
    frame = pd.DataFrame(
        [
            setting_row(eta=eta, beta=beta)
            | {"val_acc": acc + shift, "val_eo_gap": gap, "val_dp_gap": gap}
            | {"val_penalty/age": penalty}
            | DECISIONS
            for eta, beta, acc, gap, penalty in rows
            for shift in (-0.001, 0.001)
        ]
    )
    summary = summarise(frame)
    assert len(summary) == len(rows)
    chosen = recommend(summary, max_accuracy_loss=0.01)
    assert (chosen.without_s["eta"], chosen.without_s["beta"]) == (1.0, 0.8)
    assert chosen.with_s is not None
    assert chosen.with_s["eta"] == 0.5
    with pytest.raises(InputError, match="add 0"):
        recommend(summary[summary["eta"] > 0])


def test_the_front_holds_what_nothing_beats() -> None:
    accuracy, gap = pd.Series([0.8, 0.8, 0.9, 0.85]), pd.Series([0.1, 0.2, 0.3, 0.4])
    assert pareto_front(accuracy, gap) == [0, 2]


def test_ksmote_trains_its_seeds_apart() -> None:
    data = partial(DATA, ksmote=KSMOTE(n_clusters=2))
    frame = run_settings(data, [Setting(eta=eta, method="ksmote") for eta in (0.2, 0.6)], [0, 1], SHORT)
    assert frame["related"].unique().tolist() == ["cluster"]
    assert frame["lambda/cluster"].tolist() == [1.0] * 4
