"""Settings that differ in any option, and methods, are never taken for each other."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import recommend, summarise
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, setting_name
from tests.experiments.test_choice import setting_row

OTHERS: dict[str, Any] = {
    "eta": 0.7,
    "beta": 0.9,
    "removed": ("height",),
    "rule": "fixed",
    "statistic": "correlation",
    "given": "positives",
    "backbone": "linear",
    "dropout": 0.4,
    "hidden": (8,),
    "uses_sensitive": True,
    "adversary_lr": 0.5,
    "adversary_after": 3,
    "method": "mine",
}


def run(acc: float = 0.8, **options: Any) -> dict[str, Any]:
    """Return a row of results of a setting."""
    measures = {f"val_{name}": 0.1 for name in ("eo_gap", "dp_gap", "penalty/age")}
    measures |= {"val_acc": acc, "val_balanced_acc": 0.7, "val_positive_share": 0.3}
    return setting_row(**{"eta": 0.0} | options) | measures | {"seed": 0}


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


def test_results_of_an_earlier_version_are_refused() -> None:
    old = pd.DataFrame([run()]).drop(columns="hidden")
    with pytest.raises(InputError, match="no column hidden"):
        summarise(old)


def test_the_report_of_arl_names_arl_and_compares_it_with_vanilla(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", "synthetic", "--data.n_rows", "1000", "--data.batch_size", "64", "--epochs", "4"]
    main(["grid", *options, "--method", "arl", "--adversary_lr", "0.1", "--seeds", "2", "--plot", "false"])
    card = Path("grid_synthetic/model_card.md").read_text(encoding="utf-8")
    assert "Model: ARL, adversary_lr 0.1" in card
    assert "| arl | ARL, adversary_lr 0.1 |" in card
    assert "| vanilla | eta 0 (vanilla) |" in card
    assert "from vanilla" in card or "than vanilla" in card, "they are compared"
    results = pd.read_csv("grid_synthetic/results.csv")
    results[results["adversary_lr"] > 0].to_csv("grid_synthetic/results.csv", index=False)
    main(["report", "grid_synthetic"])
    card = Path("grid_synthetic/model_card.md").read_text(encoding="utf-8")
    assert "Model: ARL, adversary_lr 0.1" in card
    assert "vanilla)" not in card
    assert "No vanilla model (eta 0, no adversary) is among the results" in card
