from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from fairlearn import metrics as fairlearn
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes
from torchmetrics import MetricCollection

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from fairrf_lightning.metrics.counts import Mode, Reduction

Gap = DemographicParityGap | EqualOpportunityGap | EqualizedOddsGap
CLASSES: list[type[Gap]] = [DemographicParityGap, EqualOpportunityGap, EqualizedOddsGap]
REFERENCES = {
    DemographicParityGap: fairlearn.demographic_parity_difference,
    EqualOpportunityGap: fairlearn.equal_opportunity_difference,
    EqualizedOddsGap: fairlearn.equalized_odds_difference,
}
CONDITIONS: dict[type[Gap], list[list[int]]] = {
    DemographicParityGap: [[0, 1]],
    EqualOpportunityGap: [[1]],
    EqualizedOddsGap: [[0], [1]],
}
Batch = tuple[Tensor, Tensor, Tensor]
every_gap = pytest.mark.parametrize("gap_class", CLASSES)
every_mode = pytest.mark.parametrize("mode", ["hard", "prob"])
every_reduction = pytest.mark.parametrize("reduction", ["gap", "mean_deviation"])


def data(num_groups: int, rows: int = 300, seed: int = 0) -> Batch:
    """Random rows; the first ones hold each group with each class."""
    rng = torch.Generator().manual_seed(seed)
    groups = torch.randint(num_groups, (rows,), generator=rng)
    target = torch.randint(2, (rows,), generator=rng)
    groups[: 2 * num_groups] = torch.arange(num_groups).repeat(2)
    target[: 2 * num_groups] = torch.arange(2).repeat_interleave(num_groups)
    preds = torch.rand(rows, generator=rng).pow(1 + groups / num_groups)
    return preds, target, groups


def result(metric: Gap, *batches: Batch) -> float:
    for batch in batches:
        metric.update(*batch)
    return float(metric.compute())


def brute_force(gap_class: type[Gap], batch: Batch, reduction: Reduction, mode: Mode) -> float:
    preds, target, groups = (tensor.numpy() for tensor in batch)
    values = preds.astype(float) if mode == "prob" else (preds >= 0.5).astype(float)
    gaps = []
    for classes in CONDITIONS[gap_class]:
        keep = np.isin(target, classes)
        rates = np.array([values[keep & (groups == g)].mean() for g in range(groups.max() + 1)])
        deviation = np.abs(rates - rates.mean()).mean()
        gaps.append(np.ptp(rates) if reduction == "gap" else deviation)
    return float(max(gaps))


@every_gap
@pytest.mark.parametrize("num_groups", [2, 3, 4, 5, 6])
def test_gap_agrees_with_fairlearn(gap_class: type[Gap], num_groups: int) -> None:
    for seed in range(5):
        preds, target, groups = data(num_groups, seed=seed)
        expected = REFERENCES[gap_class](target, preds >= 0.5, sensitive_features=groups)
        metric = gap_class(num_groups)
        assert result(metric, (preds, target, groups)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_groups", [2, 6])
def test_rates_agree_with_fairlearn(num_groups: int) -> None:
    preds, target, groups = batch = data(num_groups)
    names = ["selection_rate", "true_positive_rate", "false_positive_rate"]
    functions = {name: getattr(fairlearn, name) for name in names}
    frame = fairlearn.MetricFrame(
        metrics=functions, y_true=target, y_pred=preds >= 0.5, sensitive_features=groups
    )
    selection, tpr, fpr = (torch.tensor(frame.by_group[name].to_numpy()) for name in names)
    expected = [selection, tpr, torch.stack([tpr, fpr])]
    for gap_class, rates in zip(CLASSES, expected, strict=True):
        metric = gap_class(num_groups)
        metric.update(*batch)
        torch.testing.assert_close(metric.rates(), rates, atol=1e-12, rtol=0)


@every_gap
@every_mode
@every_reduction
def test_gap_agrees_with_brute_force(gap_class: type[Gap], reduction: Reduction, mode: Mode) -> None:
    batch = data(4)
    expected = brute_force(gap_class, batch, reduction, mode)
    assert result(gap_class(4, reduction, mode), batch) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    gap_class=st.sampled_from(CLASSES),
    num_groups=st.integers(2, 6),
    mode=st.sampled_from(["hard", "prob"]),
    reduction=st.sampled_from(["gap", "mean_deviation"]),
    seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_gap_is_a_property_of_the_rows_alone(
    gap_class: type[Gap],
    *,
    num_groups: int,
    mode: Mode,
    reduction: Reduction,
    seed: int,
    cuts: list[int],
) -> None:
    def gap(*batches: Batch) -> float:
        return result(gap_class(num_groups, reduction, mode), *batches)

    preds, target, groups = batch = data(num_groups, rows=60, seed=seed)
    whole = gap(batch)
    assert 0 <= whole <= 1
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(60, generator=rng)
    assert gap((preds[order], target[order], groups[order])) == pytest.approx(whole, abs=1e-12)
    names = torch.randperm(num_groups, generator=rng)
    assert gap((preds, target, names[groups])) == pytest.approx(whole, abs=1e-12)
    by_group = groups.argsort()
    parts = np.split(by_group.numpy(), sorted(cuts))
    batches = [(preds[part], target[part], groups[part]) for part in map(torch.from_numpy, parts)]
    assert gap(*batches) == pytest.approx(whole, abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(gap_class=st.sampled_from(CLASSES), seed=st.integers(0, 2**31))
def test_mean_deviation_of_two_groups_is_half_the_gap(gap_class: type[Gap], seed: int) -> None:
    batch = data(2, rows=40, seed=seed)
    half = result(gap_class(), batch) / 2
    assert result(gap_class(reduction="mean_deviation"), batch) == pytest.approx(half, abs=1e-15)


def test_decision_at_the_threshold_is_positive() -> None:
    preds, target, groups = torch.tensor([0.5, 0.4]), torch.ones(2), torch.tensor([0, 1])
    assert result(DemographicParityGap(), (preds, target, groups)) == 1
    assert result(DemographicParityGap(threshold=0.4), (preds, target, groups)) == 0


@every_gap
@every_mode
def test_rows_of_unknown_group_are_left_out(gap_class: type[Gap], mode: Mode) -> None:
    preds, target, groups = data(3)
    known = torch.arange(len(groups)) % 5 > 0
    known[:6] = True
    metric, reference = gap_class(3, mode=mode), gap_class(3, mode=mode)
    reference.update(preds[known], target[known], groups[known])
    masked = result(metric, (preds, target, groups.where(known, -1)))
    assert masked == pytest.approx(float(reference.compute()), abs=1e-12)
    assert metric.rows.equal(reference.rows)


@every_gap
@every_mode
def test_forward_returns_the_batch_value_and_accumulates(gap_class: type[Gap], mode: Mode) -> None:
    first, second = data(2, seed=1), data(2, seed=2)
    metric = gap_class(mode=mode)
    for batch in (first, second):
        assert float(metric(*batch)) == result(gap_class(mode=mode), batch)
    both = result(gap_class(mode=mode), first, second)
    assert float(metric.compute()) == pytest.approx(both, abs=1e-12)
    metric.reset()
    assert result(metric, first) == result(gap_class(mode=mode), first)


def test_counts_are_integers_and_score_sums_double() -> None:
    hard, prob = DemographicParityGap(), DemographicParityGap(mode="prob")
    preds, target, groups = data(2)
    hard.update(preds, target, groups)
    with torch.autocast("cpu", torch.bfloat16):
        prob(preds.requires_grad_(), target, groups)
    assert hard.rows.dtype == hard.positive.dtype == prob.rows.dtype == torch.long
    assert prob.score_sum.dtype == prob.score_square_sum.dtype == torch.float64
    assert not prob.score_sum.requires_grad
    expected = brute_force(DemographicParityGap, (preds.detach(), target, groups), "gap", "prob")
    assert float(prob.compute()) == pytest.approx(expected, abs=1e-12)


def test_collection_merges_metrics_of_one_threshold_and_no_others() -> None:
    metrics: dict[str, Gap] = {
        "dp": DemographicParityGap(),
        "dp_low": DemographicParityGap(threshold=0.25),
        "dp_mean": DemographicParityGap(reduction="mean_deviation"),
        "dp_prob": DemographicParityGap(mode="prob"),
        "eo": EqualOpportunityGap(),
        "eodds": EqualizedOddsGap(),
    }
    collection = MetricCollection(dict(metrics)).clone()
    everyone_positive = torch.ones(4), torch.ones(4).long(), torch.tensor([0, 1, 0, 1])
    collection.update(*everyone_positive)
    collection.update(*data(2))
    values = collection.compute()
    for name, metric in metrics.items():
        assert float(values[name]) == result(metric, everyone_positive, data(2))
        member = collection[name]
        assert isinstance(member, type(metric))
        assert member.interval() == metric.interval()
    assert collection.compute_groups == {0: ["dp", "dp_mean", "dp_prob", "eo", "eodds"], 1: ["dp_low"]}


@every_gap
@every_mode
def test_clone_pickle_and_state_dict_keep_the_state(gap_class: type[Gap], mode: Mode) -> None:
    metric = gap_class(mode=mode)
    metric.update(*data(2))
    metric.persistent(mode=True)
    restored = gap_class(mode=mode)
    restored.load_state_dict(metric.state_dict())
    assert restored.rates().equal(metric.rates())
    for copy in (metric.clone(), pickle.loads(pickle.dumps(metric))):  # noqa: S301 our own bytes
        assert isinstance(copy, gap_class)
        assert copy.compute() == metric.compute()
        assert copy.interval() == metric.interval()


@every_gap
@every_mode
def test_merge_adds_the_rows_of_another_metric(gap_class: type[Gap], mode: Mode) -> None:
    first, second = data(2, seed=1), data(2, seed=2)
    metric, other = gap_class(mode=mode), gap_class(mode=mode)
    metric.update(*first)
    other.update(*second)
    metric.merge_state(other)
    both = result(gap_class(mode=mode), first, second)
    assert float(metric.compute()) == pytest.approx(both, abs=1e-12)


@every_gap
@every_mode
@every_reduction
def test_group_without_rows_is_nan_with_one_warning(
    gap_class: type[Gap], reduction: Reduction, mode: Mode
) -> None:
    metric = gap_class(3, reduction, mode)
    metric.update(*data(2))
    with pytest.warns(UserWarning, match=rf"{gap_class.__name__} is NaN.* in group 2") as caught:
        assert metric.compute().isnan()
    assert len(caught) == 1
    assert metric.rates()[..., 2].isnan().all()
    assert metric.rates()[..., :2].isfinite().all()
    assert all(limit.isnan() for limit in metric.interval())
    metric.update(*data(3))
    assert metric.compute().isfinite()


@pytest.mark.parametrize(
    ("gap_class", "kept", "message"),
    [
        (EqualOpportunityGap, 0, "no rows with target 1 in group 1"),
        (EqualizedOddsGap, 0, "no rows with target 1 in group 1"),
        (EqualizedOddsGap, 1, "no rows with target 0 in group 1"),
    ],
)
def test_group_without_a_class_is_nan(gap_class: type[Gap], kept: int, message: str) -> None:
    preds, target, groups = data(2)
    keep = (groups == 0) | (target == kept)
    metric = gap_class()
    metric.update(preds[keep], target[keep], groups[keep])
    with pytest.warns(UserWarning, match=message):
        assert metric.compute().isnan()
    assert all(limit.isnan() for limit in metric.interval())


@every_gap
def test_metric_without_update_is_nan(gap_class: type[Gap]) -> None:
    metric = gap_class()
    assert metric.rates().isnan().all()
    with pytest.warns(UserWarning, match="before the ``update`` method") as caught:
        assert metric.compute().isnan()
    assert len(caught) == 1


@every_gap
@every_mode
def test_empty_batch_changes_nothing(gap_class: type[Gap], mode: Mode) -> None:
    metric, batch = gap_class(mode=mode), data(2)
    empty = torch.empty(0)
    assert result(metric, (empty, empty, empty), batch) == result(gap_class(mode=mode), batch)


@pytest.mark.parametrize(
    ("preds", "target", "groups", "message"),
    [
        ([0.1, 1.5], [0, 1], [0, 1], r"preds holds 1\.5.*\[0, 1\]: apply a sigmoid"),
        ([-0.5, 0.5], [0, 1], [0, 1], r"preds holds -0\.5"),
        ([0.1, float("nan")], [0, 1], [0, 1], "preds holds nan"),
        ([0.1, 0.5], [0, 2], [0, 1], "target holds 2, expected 0 or 1"),
        ([0.1, 0.5], [0, -1], [0, 1], "target holds -1"),
        ([0.1, 0.5], [0, 1], [0, 2], "groups holds 2, expected 0 to 1.*raise num_groups"),
        ([0.1, 0.5], [0, 1], [0, -2], "groups holds -2"),
        ([0.1, 0.5], [0, 1], [0.0, 1.0], r"groups has dtype torch\.float32.*integer"),
        ([0.1, 0.5, 0.2], [0, 1], [0, 1], r"shapes \(3,\), \(2,\), \(2,\).*squeeze"),
        ([[0.1], [0.5]], [[0], [1]], [[0], [1]], r"shapes \(2, 1\)"),
    ],
)
def test_bad_batch_is_refused(preds: list[Any], target: list[Any], groups: list[Any], message: str) -> None:
    metric = DemographicParityGap()
    with pytest.raises(InputError, match=message):
        metric.update(torch.tensor(preds), torch.tensor(target), torch.tensor(groups))
    assert metric.rows.sum() == 0


def test_small_dtypes_are_accepted() -> None:
    preds, target, groups = data(2)
    expected = result(EqualizedOddsGap(), (preds, target, groups))
    unsigned = (preds, target.bool(), groups.byte())
    assert result(EqualizedOddsGap(), unsigned) == expected
    assert result(EqualizedOddsGap(), ((preds >= 0.5).int(), target.float(), groups)) == expected


def test_unchecked_batch_gives_the_same_result() -> None:
    batch = data(3)
    expected = result(EqualizedOddsGap(3), batch)
    assert result(EqualizedOddsGap(3, validate_args=False), batch) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_groups": 1}, "num_groups is 1, expected 2 or more"),
        ({"reduction": "gaps"}, "reduction = 'gaps': expected one of .*; did you mean 'gap'"),
        ({"mode": "soft"}, "mode = 'soft': expected one of 'hard', 'prob'"),
        ({"threshold": 1.5}, r"threshold is 1\.5, expected a probability"),
        ({"threshold": float("nan")}, "threshold is nan"),
    ],
)
def test_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DemographicParityGap(**arguments)


def test_options_reach_the_metric_class() -> None:
    assert not DemographicParityGap(sync_on_compute=False).sync_on_compute
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `colour`"):
        DemographicParityGap(colour="red")


@every_gap
def test_plot_draws_current_and_given_values(gap_class: type[Gap]) -> None:
    plt.switch_backend("Agg")
    metric = gap_class()
    values = [metric(*data(2, seed=seed)) for seed in range(3)]
    for val in (None, values):
        figure, axes = metric.plot(val)
        assert isinstance(axes, Axes)
        bottom, top = axes.get_ylim()
        assert bottom <= 0
        assert top >= 1
        plt.close(figure)


def gaps_of(batch: Batch) -> dict[str, list[Tensor]]:
    """All results of all metrics, together with their local counts afterwards."""
    results = {}
    for gap_class in CLASSES:
        for mode in ("hard", "prob"):
            metric = gap_class(3, mode=mode)
            metric.update(*batch)
            local = metric.rows.clone()
            numbers = [metric.compute(), metric.rates(), *metric.interval(0.9)]
            results[f"{gap_class.__name__} {mode}"] = numbers
            assert metric.rows.equal(local)
    return results


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    part = slice(0, 60) if rank == 0 else slice(60, None)
    preds, target, groups = sorted_data()
    torch.save(gaps_of((preds[part], target[part], groups[part])), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def sorted_data() -> Batch:
    """Rows in the order of their groups, so that no process holds all groups."""
    preds, target, groups = data(3, rows=201)
    order = groups.argsort()
    return preds[order], target[order], groups[order]


@pytest.mark.filterwarnings("ignore:.*use of fork")  # Python 3.12; no thread of ours runs
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    # Forked: two more imports of torch take 14 seconds.
    start_processes(run_rank, (str(tmp_path),), nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
    expected = gaps_of(sorted_data())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, numbers in expected.items():
            tolerance = 0.0 if "hard" in name else 1e-12
            torch.testing.assert_close(found[name], numbers, atol=tolerance, rtol=0)


@every_gap
def test_a_stack_has_the_gaps_of_its_models(gap_class: type[Gap]) -> None:
    preds, target, groups = data(3)
    models = torch.stack([preds, preds.square()])
    stack = gap_class(3, models=(2,))
    stack.update(models, target, groups)
    for number, single_preds in enumerate(models):
        single = gap_class(3)
        single.update(single_preds, target, groups)
        assert stack.compute()[number] == single.compute()
        assert stack.rates()[number].equal(single.rates())
        assert [limit[number] for limit in stack.interval()] == list(single.interval())
    with pytest.raises(InputError, match=r"shapes \(300,\), .*expected preds of shape \(2, 300\)"):
        stack.update(preds, target, groups)
