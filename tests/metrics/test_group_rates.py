"""The groups' rates against fairlearn's, and where there are no rows."""

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    false_positive_rate,
    selection_rate,
    true_positive_rate,
)
from sklearn.metrics import accuracy_score

from fairrf_lightning.metrics import EqualizedOddsGap, wilson_interval
from fairrf_lightning.metrics.group_rates import group_rates

REFERENCE = {
    "selection_rate": selection_rate,
    "tpr": true_positive_rate,
    "fpr": false_positive_rate,
    "accuracy": accuracy_score,
}


def test_rates_are_those_of_fairlearn_however_the_rows_are_batched() -> None:
    rng = np.random.default_rng(0)
    groups, target, preds = rng.integers(0, 3, 400), rng.integers(0, 2, 400), rng.random(400)
    metric = EqualizedOddsGap(num_groups=3)
    for part in np.array_split(np.arange(400), 7):
        metric.update(*(torch.tensor(values[part]) for values in (preds, target, groups)))
    frame = MetricFrame(
        metrics=REFERENCE, y_true=target, y_pred=(preds >= 0.5).astype(int), sensitive_features=groups
    )
    found = group_rates(metric)
    assert list(found) == list(REFERENCE)
    for name, rate in found.items():
        assert rate.value.tolist() == pytest.approx(frame.by_group[name].tolist())
        low, high = wilson_interval(rate.value * rate.rows, rate.rows)
        torch.testing.assert_close(rate.low, low)
        torch.testing.assert_close(rate.high, high)
    assert found["accuracy"].rows.tolist() == np.bincount(groups).tolist()
    assert found["tpr"].rows.tolist() == np.bincount(groups[target == 1]).tolist()


def test_a_group_without_positives_has_no_true_positive_rate() -> None:
    metric = EqualizedOddsGap(num_groups=2)
    metric.update(torch.tensor([0.9, 0.1, 0.8]), torch.tensor([1, 0, 0]), torch.tensor([0, 0, 1]))
    found = group_rates(metric)
    assert found["tpr"].value.isnan().tolist() == [False, True]
    assert found["fpr"].value.tolist() == [0.0, 1.0]
