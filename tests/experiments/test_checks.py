"""The checks choose on validation and judge on test."""

from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.experiments.checks import checks
from fairrf_lightning.experiments.ledger import Finding
from tests.experiments.test_ledger import part


def compas(method: str, val: tuple[float, float], test: tuple[float, float], **options: Any) -> pd.DataFrame:
    """Return runs of an ablation on COMPAS with these accuracies and gaps."""
    measures = {"val_acc": val[0], "val_eo_gap": val[1], "val_dp_gap": val[1]}
    measures |= {"test_acc": test[0], "test_eo_gap": test[1], "test_dp_gap": test[1]}
    return part("ablation", "compas", method, 0.0, **measures | options)


def found(*parts: pd.DataFrame, about: str) -> list[Finding]:
    results = pd.concat(parts, ignore_index=True)
    return [finding for finding in checks(results) if finding.question == about]


VANILLA = compas("vanilla", (0.70, 0.20), (0.70, 0.20), eta=0.0)
GOOD_ON_TEST = compas("top_1 age", (0.695, 0.18), (0.70, 0.05))
GOOD_ON_VALIDATION = compas("wider", (0.69, 0.10), (0.69, 0.16))
TOO_DEAR = compas("constrain_all", (0.60, 0.01), (0.70, 0.01))


def test_the_setting_for_compas_is_chosen_on_validation_whatever_the_test_split_says() -> None:
    without_s, with_s, hindsight = found(VANILLA, GOOD_ON_TEST, GOOD_ON_VALIDATION, TOO_DEAR, about="COMPAS")
    assert "not chosen beforehand" in hindsight.claim
    assert hindsight.measured.startswith("constrain_all, eta ")
    assert hindsight.verdict == "holds"
    assert "chosen without S" in without_s.claim
    assert "chosen with S" in with_s.claim
    for finding in (without_s, with_s):
        assert finding.measured.startswith("wider: dEO -20 %")
        assert finding.verdict == "fails"


def test_without_s_the_costliest_affordable_setting_is_chosen_with_s_the_fairest() -> None:
    costly = compas("noisy 1", (0.68, 0.19), (0.68, 0.14))
    without_s, with_s, _ = found(VANILLA, costly, GOOD_ON_VALIDATION, about="COMPAS")
    assert without_s.measured.startswith("noisy 1: dEO -30 %")
    assert without_s.verdict == "holds"
    assert with_s.measured.startswith("wider")


def test_without_an_affordable_setting_the_check_fails() -> None:
    dear_on_test = TOO_DEAR.assign(test_acc=0.6)
    verdicts = {(f.measured, f.verdict) for f in found(VANILLA, dear_on_test, about="COMPAS")}
    assert verdicts == {("no setting is within the budget of accuracy without having collapsed", "fails")}


@pytest.mark.parametrize(("auc", "verdict"), [(0.91, "holds"), (0.89, "fails")])
def test_arl_is_judged_by_its_most_accurate_adversary(auc: float, verdict: str) -> None:
    def adult(method: str, acc: float, auc: float, lr: float) -> pd.DataFrame:
        return part("adult", "adult", method, 0.1, acc, test_worst_group_auc=auc, adversary_lr=lr, eta=0.0)

    runs = [adult("vanilla", 0.85, 0.90, 0.0), adult("fairrf", 0.85, 0.90, 0.0)]
    runs += [adult("arl", 0.84, 0.5, 0.01), adult("arl", 0.845, auc, 0.1), adult("arl", 0.7, 0.5, 1.0)]
    accuracy, area = found(*runs, about="ARL")
    assert accuracy.measured.startswith("-0.005")
    assert accuracy.verdict == "holds"
    assert area.verdict == verdict
