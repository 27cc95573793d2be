"""Gaps of more than two classes, against fairlearn on each class, and through FairRFModule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairlearn.metrics import (
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from torch import Tensor

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from tests.trainers import quiet_trainer

CLASSES = 4
REFERENCES: dict[Any, Any] = {
    DemographicParityGap: demographic_parity_difference,
    EqualOpportunityGap: equal_opportunity_difference,
    EqualizedOddsGap: equalized_odds_difference,
}


def draw(rows: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(0, 3, (rows,), generator=generator)
    target = torch.randint(0, CLASSES, (rows,), generator=generator)
    logits = torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    logits[:, 1] += 0.5 * groups
    logits[torch.arange(rows), target] += 1
    return logits.softmax(1), target, groups


@pytest.mark.parametrize("metric", list(REFERENCES))
def test_gap_of_each_class_is_fairlearns(metric: Any) -> None:
    probs, target, groups = draw()
    found = metric(num_groups=3, num_classes=CLASSES)
    for part in (slice(0, 200), slice(200, 600)):
        found.update(probs[part], target[part], groups[part])
    decisions = probs.argmax(1)
    expected = [
        REFERENCES[metric](target == c, decisions == c, sensitive_features=groups) for c in range(CLASSES)
    ]
    assert found.by_class().tolist() == pytest.approx(expected, abs=1e-12)
    assert found.compute().item() == pytest.approx(max(expected), abs=1e-12)
    low, high = found.interval()
    assert 0 <= low <= found.compute() <= high <= 1
    assert high - low > 0.02


def test_interval_of_one_class_in_three_covers_less_than_that_of_all() -> None:
    probs, target, groups = draw()
    metric, binary = DemographicParityGap(3, num_classes=CLASSES), DemographicParityGap(3)
    metric.update(probs, target, groups)
    binary.update((probs.argmax(1) == 1).double(), (target == 1).long(), groups)
    assert metric.compute() == binary.compute()  # the largest gap is that of class 1
    assert metric.interval()[0] < binary.interval()[0]  # the lower limits share the error probability


def test_probabilities_of_the_classes_are_compared_in_prob_mode() -> None:
    probs, target, groups = draw()
    metric = DemographicParityGap(3, mode="prob", num_classes=CLASSES)
    metric.update(probs, target, groups)
    means = torch.stack([probs[groups == g].mean(0) for g in range(3)])
    expected = means.amax(0) - means.amin(0)
    torch.testing.assert_close(metric.by_class(), expected)


def test_class_that_a_group_lacks_has_no_gap() -> None:
    probs, target, groups = draw()
    target[(groups == 2) & (target == 3)] = 0
    metric = EqualOpportunityGap(3, num_classes=CLASSES)
    metric.update(probs, target, groups)
    with pytest.warns(UserWarning, match="EqualOpportunityGap is NaN: there are no rows with target 1"):
        assert metric.compute().isnan()
    assert metric.by_class().isnan().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("probs", "target", "message"),
    [
        (torch.full((4,), 0.5), torch.zeros(4), r"expected probabilities \(N, 3\)"),
        (torch.full((4, 2), 0.5), torch.zeros(4), r"expected probabilities \(N, 3\)"),
        (torch.full((4, 3), 2.0), torch.zeros(4), "apply a softmax"),
        (torch.full((4, 3), 0.3), torch.full((4,), 3), "target holds 3"),
    ],
)
def test_impossible_batches_are_refused(probs: Tensor, target: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DemographicParityGap(2, num_classes=3).update(probs, target, torch.zeros(4).long())


def rows(count: int = 512) -> dict[str, Tensor]:
    """Three classes that depend on three columns; the group goes with column 0."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=generator)
    noise = torch.randn(count, 3, generator=generator)
    target = (inputs @ torch.tensor([[2.0, -1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) + noise).argmax(1)
    return {"inputs": inputs, "target": target, "groups": (inputs[:, 0] > 0).long()}


def trained(eta: float, **options: Any) -> dict[str, float]:
    torch.manual_seed(0)
    data = rows()
    training = {name: value for name, value in data.items() if name != "groups"}
    module = FairRFModule(
        3, {"age": [0], "zip": [1]}, backbone="linear", eta=eta, num_classes=3, lr=0.05, **options
    )
    trainer = quiet_trainer(
        max_epochs=20, callbacks=[PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.5, every_n_steps=5)]
    )
    trainer.fit(module, TensorBatches(training, 128, shuffle=True), TensorBatches(data, 512))
    predictions = trainer.predict(module, TensorBatches(data, 512))
    assert predictions is not None
    assert predictions[0]["probability"].shape == (512, 3)  # type: ignore[call-overload]
    share_right = (predictions[0]["decision"] == data["target"]).float().mean()  # type: ignore[call-overload]
    values = {name: float(value) for name, value in module.results.items()}
    assert values["acc"] == pytest.approx(float(share_right))
    return values


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*logging interval")
@pytest.mark.filterwarnings("ignore:.*collapsed onto")
def test_module_of_three_classes_trains_with_the_penalty() -> None:
    vanilla, fair = trained(0.0), trained(20.0)
    assert fair["penalty/age"] < 0.2 * vanilla["penalty/age"]
    assert fair["dp_gap"] < 0.5 * vanilla["dp_gap"]
    assert 0.4 < fair["acc"] < vanilla["acc"]
    by_class = [vanilla[f"dp_gap/class_{number}"] for number in range(3)]
    assert vanilla["dp_gap"] == max(by_class)
    assert vanilla["dp_gap_low"] <= vanilla["dp_gap"] <= vanilla["dp_gap_high"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "num_classes = 1"),
        ({"classes": [1]}, "more than two classes"),
        ({"num_classes": 3, "classes": [3]}, "below num_classes"),
        ({"num_classes": 3, "given": "positives"}, "for two classes"),
        ({"num_classes": 3, "backbone": "svm"}, "LinearSVM is for two classes"),
    ],
)
def test_impossible_classes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FairRFModule(3, {"age": [0]}, **options)


@pytest.mark.parametrize("options", [{"num_classes": 1}, {"num_classes": 3, "models": 2}])
def test_metric_of_impossible_classes_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="num_classes is"):
        DemographicParityGap(**options)


def test_two_classes_have_one_gap() -> None:
    with pytest.raises(InputError, match="more than two classes"):
        DemographicParityGap().by_class()
