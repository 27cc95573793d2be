from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from fairrf_lightning.metrics.decisions import decision_summary, has_collapsed, is_constant


def test_summary_equals_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    decided = torch.rand(3, 200, generator=generator) > 0.6
    target = torch.rand(3, 200, generator=generator) > 0.4
    counts = [decided & target, decided & ~target, ~decided & ~target, ~decided & target]

    summary = decision_summary(*(count.sum(-1) for count in counts))

    for model in range(3):
        truth, made = target[model].numpy(), decided[model].numpy()
        assert float(summary["acc"][model]) == pytest.approx(accuracy_score(truth, made))
        assert float(summary["balanced_acc"][model]) == pytest.approx(balanced_accuracy_score(truth, made))
        assert float(summary["positive_share"][model]) == pytest.approx(made.mean())


def test_balanced_accuracy_is_unknown_without_one_of_the_classes() -> None:
    summary = decision_summary(*(torch.tensor(count) for count in (3, 0, 0, 1)))

    assert summary["balanced_acc"].isnan()
    assert summary["acc"] == 0.75


@pytest.mark.parametrize(
    ("balanced_acc", "positive_share", "collapsed"),
    [
        (0.76, 0.21, False),
        (0.76, 0.30, False),  # half more than the vanilla model's
        (0.76, 0.31, True),
        (0.76, 0.09, True),
        (0.71, 0.20, True),  # 6 points less
        (0.5, 0.0, True),
    ],
)
def test_a_model_has_collapsed_if_it_is_far_from_the_vanilla_one(
    balanced_acc: float,
    positive_share: float,
    collapsed: object,
) -> None:
    found = has_collapsed(balanced_acc, positive_share, vanilla_balanced_acc=0.77, vanilla_positive_share=0.2)

    assert found is collapsed


@pytest.mark.parametrize(("share", "constant"), [(0.0, True), (1.0, True), (0.0001, False)])
def test_one_decision_for_everyone(share: float, constant: object) -> None:
    assert is_constant(share) is constant
