"""Counts per group and class: from tensors and arrays, added, merged, and the rates against fairlearn's."""

from __future__ import annotations

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
from fairrf_lightning.metrics.counts import GAPS, GroupCounts

REFERENCE = {
    "selection_rate": selection_rate,
    "true_positive_rate": true_positive_rate,
    "false_positive_rate": false_positive_rate,
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
    found = metric.counts().group_rates()
    assert list(found) == list(REFERENCE)
    for name, rate in found.items():
        assert rate.value.tolist() == pytest.approx(frame.by_group[name].tolist())
        low, high = wilson_interval(rate.value * rate.rows, rate.rows)
        torch.testing.assert_close(rate.low, low)
        torch.testing.assert_close(rate.high, high)
    assert found["accuracy"].rows.tolist() == np.bincount(groups).tolist()
    assert found["true_positive_rate"].rows.tolist() == np.bincount(groups[target == 1]).tolist()


def test_a_group_without_positives_has_no_true_positive_rate() -> None:
    metric = EqualizedOddsGap(num_groups=2)
    metric.update(torch.tensor([0.9, 0.1, 0.8]), torch.tensor([1, 0, 0]), torch.tensor([0, 0, 1]))
    found = metric.counts().group_rates()
    assert found["true_positive_rate"].value.isnan().tolist() == [False, True]
    assert found["false_positive_rate"].value.tolist() == [0.0, 1.0]


def test_tensors_arrays_and_plain_counts_agree() -> None:
    rng = np.random.default_rng(0)
    probs, target, groups = rng.random((2, 300)), rng.integers(0, 2, 300), rng.integers(0, 3, 300)
    arrays = GroupCounts.of_arrays(probs >= 0.5, target, groups, 3, probs)
    tensors = GroupCounts.of(torch.tensor(probs), torch.tensor(target), torch.tensor(groups), num_groups=3)
    plain = GroupCounts(arrays.rows, arrays.positive)
    for mine, theirs in zip(arrays.fields(), tensors.fields(), strict=True):
        torch.testing.assert_close(mine, theirs)
    for gap in GAPS.values():
        assert plain.gap(gap).equal(tensors.gap(gap))
    with pytest.raises(ValueError, match="decisions only"):
        plain.gap(GAPS["dp_gap"], mode="prob")


def test_parts_add_up_and_merged_groups_are_their_union() -> None:
    rng = np.random.default_rng(1)
    decisions, target, groups = rng.integers(0, 2, (1, 200)), rng.integers(0, 2, 200), rng.integers(0, 4, 200)
    whole = GroupCounts.of_arrays(decisions, target, groups, 4)
    parts = np.split(np.arange(200), 2)
    halves = [GroupCounts.of_arrays(decisions[:, part], target[part], groups[part], 4) for part in parts]
    assert (halves[0] + halves[1]).positive.equal(whole.positive)
    union = GroupCounts.of_arrays(decisions, target, groups // 2, 2)
    merged = whole.merge_groups([[0, 1], [2, 3]])
    assert merged.rows.equal(union.rows)
    assert merged.positive.equal(union.positive)


def test_models_may_have_rows_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    preds = torch.rand(2, 3, 50, generator=generator)
    target = torch.randint(2, (2, 3, 50), generator=generator)
    groups = torch.randint(-1, 3, (2, 3, 50), generator=generator)
    stack = GroupCounts.of(preds, target, groups, 3)
    single = GroupCounts.of(preds[1, 2], target[1, 2], groups[1, 2], 3)
    for mine, theirs in zip(stack.fields(), single.fields(), strict=True):
        torch.testing.assert_close(mine[1, 2], theirs)


def test_demographic_parity_alone_needs_no_labels() -> None:
    assert [key for key, gap in GAPS.items() if not gap.needs_labels] == ["dp_gap"]
