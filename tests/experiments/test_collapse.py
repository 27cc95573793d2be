"""Rare labels: a large eta ends in a model that gives everyone the same decision, and it is not chosen."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.experiments import recommend, summarise
from fairrf_lightning.metrics.decisions import SAME_DECISION
from paper.choose import affordable_choices, choose, rejections
from tests.experiments.test_choose import setting_row

# 15 % positive labels, predicted mostly by a feature that is related to S.
RARE = ["--data", "synthetic", "--data.n_rows", "1500", "--data.batch_size", "32", "--data.base_rate", "0.15"]
RARE += ["--data.bias", "0.1", "--data.correlations", '{"height": [0.6, 0.45], "skill": [0.0, 0.3]}']
RARE += ["--epochs", "5", "--plot", "false", "--max_accuracy_loss", "0.05", "--out", "mine"]


def test_a_grid_does_not_recommend_a_collapsed_setting_and_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["grid", *RARE, "--eta", "0.1,5", "--seeds", "2"])
    printed = capsys.readouterr().out
    results = pd.read_csv("mine/results.csv")
    collapsed = results[results["eta"] == 5]
    assert (collapsed["val_positive_share"] == 0).all()
    vanilla = results.loc[results["eta"] == 0, "val_acc"].mean()
    assert collapsed["val_acc"].mean() >= vanilla - 0.05, "its accuracy alone would not reject it"
    assert "Recommended without S: eta 0.1, beta 0.5" in printed
    assert "Rejected: eta 5, beta 0.5: 2 of 2 models give everyone the same" in printed
    assert "same decision in 2 of 2 models" in printed
    assert SAME_DECISION not in printed, "the recommended models tell rows apart"
    card = Path("mine/model_card.md").read_text(encoding="utf-8")
    assert "Model: eta 0.1, beta 0.5" in card
    assert "Rejected: eta 5" in card


def test_a_sweep_does_not_choose_a_collapsed_trial_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("space.yaml").write_text("eta: [0.1, 5.0]\n")
    main(["sweep", *RARE, "--trials", "4", "--space", "space.yaml", "--seeds", "1"])
    printed = capsys.readouterr().out
    trials = pd.read_csv("mine/trials.csv")
    smallest = trials.sort_values("val_covariance").iloc[0]
    assert (smallest["eta"], smallest["constant_models"]) == (5, 1), "the objective alone would choose it"
    chosen = next(line for line in printed.splitlines() if line.startswith("Chosen: "))
    assert "eta 0.1" in chosen or "vanilla" in chosen
    assert f"Rejected: trial {int(smallest['trial'])}, eta 5: 1 of 1 models" in printed
    assert "Rejected: trial" in Path("mine/model_card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["grid", "sweep"])
def test_that_every_decision_is_the_same_is_said_first(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Six positive rows of 400: no model predicts one.
    table = pd.DataFrame({"height": range(400), "group": ["a", "b"] * 200, "label": [1] * 6 + [0] * 394})
    table.sample(frac=1, random_state=0).to_csv("rare.csv", index=False)
    Path("space.yaml").write_text("eta: [0.1, 0.2]\n")
    constant = ["--data", "table", "--data.path", "rare.csv", "--data.target", "label", "--data.positive"]
    constant += ["1", "--data.related", "[height]", "--data.sensitive", "group", "--epochs", "20"]
    more = {"grid": ["--eta", "0.1"], "sweep": ["--space", "space.yaml", "--trials", "1"]}[command]
    main([command, *constant, *more, "--seeds", "1", "--plot", "false", "--out", "mine"])
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[0] == printed[-1] == f"Note: {SAME_DECISION}."
    title = SAME_DECISION[0].upper() + SAME_DECISION[1:]
    assert title in Path("mine/model_card.md").read_text(encoding="utf-8")


def rows(eta: float, acc: float, balanced: float, shares: tuple[float, ...], **options: Any) -> pd.DataFrame:
    """Return runs of a setting, one for each share of positive decisions, with tiny gaps if eta is large."""
    measures = {"val_acc": acc, "val_balanced_acc": balanced, "val_eo_gap": 0.1 / (1 + eta)}
    measures |= {"val_dp_gap": 0.1 / (1 + eta), "val_penalty/age": 0.1 / (1 + eta)}
    row = setting_row(eta=eta, **options) | measures | {"method_steps": 9}
    return pd.DataFrame([row | {"seed": n, "val_positive_share": share} for n, share in enumerate(shares)])


VANILLA = rows(0.0, 0.85, 0.70, (0.20, 0.22), method="vanilla")
SOUND = rows(0.5, 0.85, 0.68, (0.15, 0.15))


@pytest.mark.parametrize(
    ("collapsed", "reason"),
    [
        (rows(2.0, 0.85, 0.70, (0.20, 0.0)), "1 of 2 models give everyone the same decision"),
        (rows(2.0, 0.85, 0.70, (1.0, 1.0)), "2 of 2 models give everyone the same decision"),
        (rows(2.0, 0.85, 0.64, (0.20, 0.22)), "balanced accuracy 0.640 and 21.0 % positive decisions"),
        (rows(2.0, 0.85, 0.70, (0.10, 0.10)), "balanced accuracy 0.700 and 10.0 % positive decisions"),
        (rows(2.0, 0.85, 0.70, (0.33, 0.33)), "the vanilla model has balanced accuracy 0.700 and 21.0 %"),
    ],
)
def test_one_rule_of_eligibility_holds_in_grid_and_reproduce(collapsed: pd.DataFrame, reason: str) -> None:
    chosen = recommend(summarise(pd.concat([VANILLA, SOUND, collapsed])), 0.01)
    assert chosen.without_s["eta"] == 0.5
    assert chosen.with_s is not None
    assert chosen.with_s["eta"] == 0.5
    (rejected,) = chosen.rejected
    assert rejected.startswith("eta 2, beta 0.5: ")
    assert reason in rejected
    runs = pd.concat([SOUND, collapsed])
    for rule in ("without S", "with S"):
        assert set(choose(runs, VANILLA, 0.01, rule)["eta"]) == {0.5}
    (listed,) = rejections(runs, VANILLA, 0.01)
    assert listed == f"fairrf, {rejected}"
    assert set(affordable_choices(runs, VANILLA, 0.01)) == {"fairrf"}
    assert not affordable_choices(collapsed, VANILLA, 0.01)


def test_a_setting_at_the_border_is_eligible() -> None:
    border = rows(2.0, 0.85, 0.655, (0.11, 0.11))
    chosen = recommend(summarise(pd.concat([VANILLA, SOUND, border])), 0.01)
    assert chosen.without_s["eta"] == 2.0
    assert chosen.rejected == []


def test_what_is_too_inaccurate_anyway_is_not_listed_as_rejected() -> None:
    chosen = recommend(summarise(pd.concat([VANILLA, SOUND, rows(2.0, 0.5, 0.5, (0.0, 0.0))])), 0.01)
    assert chosen.rejected == []


def test_a_constant_vanilla_model_is_no_reference_if_there_is_another() -> None:
    constant = rows(0.0, 0.86, 0.5, (0.0, 0.0), dropout=0.9)
    chosen = recommend(summarise(pd.concat([VANILLA, SOUND, constant])), 0.01)
    assert chosen.vanilla is not None
    assert chosen.vanilla["dropout"] == 0.1
    assert chosen.without_s["eta"] == 0.5
    assert chosen.with_s is not None
    assert chosen.with_s["dropout"] == 0.1
