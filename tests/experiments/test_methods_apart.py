"""Settings that differ in any option, and methods, are never taken for each other."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, recommend, run_settings, summarise
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, setting_name
from tests.experiments.test_choose import DECISIONS, setting_row

SHORT = ["--seeds", "2", "--plot", "false"]
OTHERS: dict[str, Any] = {
    "eta": 0.7,
    "beta": 0.9,
    "remove": ("height",),
    "rule": "worst_case",
    "every_n_steps": None,
    "statistic": "correlation",
    "given": "positives",
    "backbone": "linear",
    "dropout": 0.4,
    "hidden": (8,),
    "expose_sensitive": True,
    "adversary_lr": 0.5,
    "pretrain_steps": 3,
    "method": "mine",
}


def run(acc: float = 0.8, **options: Any) -> dict[str, Any]:
    """Return a row of results of a setting."""
    measures = {f"val_{name}": 0.1 for name in ("eo_gap", "dp_gap", "penalty/age")}
    return setting_row(**{"eta": 0.0} | options) | measures | DECISIONS | {"val_acc": acc, "seed": 0}


@pytest.mark.parametrize("option", OTHERS)
def test_no_option_of_a_setting_is_averaged_over(option: str) -> None:
    assert set(OTHERS) == set(SETTING_COLUMNS) - {"related"}, "each option has another value here"
    summary = summarise(pd.DataFrame([run(0.8), run(0.6, **{option: OTHERS[option]})]))
    assert summary["val_acc"].tolist() == [0.8, 0.6]


def test_of_arl_the_most_accurate_adversary_is_recommended_and_compared_with_vanilla() -> None:
    arl = [run(acc, adversary_lr=lr, method="arl") for lr, acc in ((0.01, 0.75), (0.1, 0.79), (1.0, 0.7))]
    chosen = recommend(summarise(pd.DataFrame([run(0.8), *arl])))
    assert chosen.without_s["adversary_lr"] == 0.1
    assert setting_name(chosen.without_s) == "ARL, adversary_lr 0.1"
    assert chosen.vanilla is not None
    assert setting_name(chosen.vanilla) == "eta 0 (vanilla)"
    assert not chosen.is_vanilla
    alone = recommend(summarise(pd.DataFrame(arl)))
    assert alone.without_s["adversary_lr"] == 0.1
    assert alone.vanilla is None


def test_in_a_grid_of_eta_an_adversary_is_never_recommended() -> None:
    mixed = [run(0.8), run(0.5, eta=0.3), run(0.9, adversary_lr=0.1, method="arl")]
    chosen = recommend(summarise(pd.DataFrame(mixed)))
    assert setting_name(chosen.without_s) == "eta 0 (vanilla)"
    assert chosen.is_vanilla
    with pytest.raises(InputError, match="add 0 to the etas"):
        recommend(summarise(pd.DataFrame(mixed[1:])))


def test_an_adversary_that_has_collapsed_is_not_recommended() -> None:
    constant = run(0.9, adversary_lr=1.0, method="arl") | {"val_positive_share": 1.0}
    chosen = recommend(summarise(pd.DataFrame([run(0.8), constant])))
    assert chosen.is_vanilla
    assert chosen.rejected == ["ARL, adversary_lr 1: 1 of 1 models give everyone the same decision"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"eta": 5.0}, "eta 5, beta 0.5: 1 of 1 models are vanilla ones: the penalty was never on"),
        (
            {"adversary_lr": 0.1, "method": "arl"},
            "ARL, adversary_lr 0.1: 1 of 1 models are vanilla ones: the adversary never stepped",
        ),
    ],
)
def test_a_model_that_its_method_never_touched_is_not_recommended(
    options: dict[str, Any], reason: str
) -> None:
    idle = run(0.8, **options) | {"method_steps": 0}
    chosen = recommend(summarise(pd.DataFrame([run(0.8) | {"method_steps": 0}, idle])))
    assert chosen.is_vanilla
    (rejected,) = chosen.rejected
    assert rejected.startswith(reason)


def test_steps_of_the_method_are_counted_up_to_the_kept_epoch() -> None:
    settings = [Setting(eta=0.0), Setting(eta=0.2)]
    settings += [Setting(eta=0.0, adversary_lr=0.1, pretrain_steps=n, method="arl") for n in (7, 100)]
    data = partial(SyntheticDataModule, n_rows=200, batch_size=25)  # 4 steps per epoch
    frame = run_settings(data, settings, [0], Schedule(epochs=3, pretrain_epochs=1))
    epochs = frame["best_epoch"] + 1
    expected = [0, 4 * (epochs[1] - 1), max(0, 4 * epochs[2] - 7), 0]
    assert frame["method_steps"].tolist() == expected


def test_a_schedule_without_an_epoch_for_the_penalty_is_refused() -> None:
    data = partial(SyntheticDataModule, n_rows=200)
    with pytest.raises(InputError, match="no epoch is left for the penalty"):
        run_settings(data, [Setting(eta=0.2)], [0], Schedule(epochs=2, pretrain_epochs=2))


def test_results_of_an_earlier_version_are_refused() -> None:
    old = pd.DataFrame([run()]).drop(columns="hidden")
    with pytest.raises(InputError, match="no column hidden"):
        summarise(old)


def test_the_report_of_arl_names_arl_and_compares_it_with_vanilla() -> None:
    options = ["--data", "synthetic", "--data.n_rows", "1000", "--data.batch_size", "64", "--epochs", "4"]
    main(["grid", *options, "--method", "arl", "--adversary_lr", "0.1", "--pretrain_steps", "0", *SHORT])
    card = _card()
    assert "Model: ARL, adversary_lr 0.1" in card
    assert "| arl | ARL, adversary_lr 0.1 |" in card
    assert "| vanilla | eta 0 (vanilla) |" in card
    assert "from vanilla" in card or "than vanilla" in card, "they are compared"
    results = pd.read_csv("grid_synthetic/results.csv")
    results[results["adversary_lr"] > 0].to_csv("grid_synthetic/results.csv", index=False)
    main(["report", "grid_synthetic"])
    card = _card()
    assert "Model: ARL, adversary_lr 0.1" in card
    assert "vanilla)" not in card
    assert "no vanilla model (eta 0, no adversary)" in card


def _card() -> str:
    return Path("grid_synthetic/model_card.md").read_text(encoding="utf-8").replace("\\_", "_")
