from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from fairrf_lightning import InputError
from fairrf_lightning.correction import Correction, Goal
from fairrf_lightning.estimate import ScoredRows
from fairrf_lightning.functional import correction_costs, correction_path, membership_rates
from fairrf_lightning.membership import by_group


def population(num_rows: int, num_groups: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities, membership in each group and labels of rows with a gap."""
    generator = torch.Generator().manual_seed(seed)
    traits = torch.randn(num_rows, num_groups, generator=generator, dtype=torch.float64)
    membership = (1.5 * traits).softmax(-1)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    probs = (traits[:, -1] - 0.5 * traits[:, 0] + noise - 0.5).sigmoid()
    labels = torch.rand(num_rows, generator=generator, dtype=torch.float64) < probs
    return probs, membership, labels


def test_a_goal_with_another_budget_next_to_it_is_refused() -> None:
    goal = Goal("eo_gap", 0.05, max_accuracy_loss=0.02)
    assert Goal.parse(goal) is goal
    assert Goal.parse(goal, 0.02) is goal
    with pytest.raises(InputError, match="give them to the Goal"):
        Goal.parse(goal, 0.01)


def best_accuracy(probs: Tensor, rate_weights: Tensor, limit: float) -> float:
    """Return the highest expected accuracy of decisions whose rates differ by at most ``limit``: a LP."""
    gain, weights = (2 * probs - 1).numpy() / len(probs), rate_weights.numpy()
    groups = weights.shape[1]
    rows = [weights[:, a] - weights[:, b] for a in range(groups) for b in range(groups) if a != b]
    found = linprog(-gain, A_ub=np.stack(rows), b_ub=np.full(len(rows), limit), bounds=(0, 1))
    return float((1 - probs).mean()) + float(np.dot(gain, np.asarray(found.x)))


def expected_accuracy(probs: Tensor, decisions: Tensor) -> float:
    return float(torch.where(decisions, probs, 1 - probs).mean())


@pytest.mark.parametrize("positives", [False, True], ids=["parity", "opportunity"])
def test_path_of_two_groups_is_the_most_accurate_decision_at_each_gap(positives: bool) -> None:  # noqa: FBT001
    probs, membership, _ = population(200, 2)
    # The rates of the positives in expectation: each row counts with its probability of the label.
    weights = membership * probs[:, None] if positives else membership
    share = weights.mean(0) / weights.sum(-1).mean()
    costs = correction_costs(probs, membership, share, positives=positives)
    path = list(correction_path(probs, costs, weights))
    assert len(path) > 20
    for point in path[:: len(path) // 8]:
        limit = float(point.rates.max() - point.rates.min())
        best = best_accuracy(probs, weights / weights.sum(0), limit)
        assert expected_accuracy(probs, point.decisions) == pytest.approx(best, abs=1e-9)


def test_path_of_three_groups_ends_near_equal_rates_and_near_the_optimum() -> None:
    probs, membership, _ = population(400, 3)
    costs = correction_costs(probs, membership, membership.mean(0), positives=False)
    path = list(correction_path(probs, costs, membership))
    gaps = [float(point.rates.max() - point.rates.min()) for point in path]
    assert gaps[0] > 0.25
    assert min(gaps) < 0.01
    for limit in (0.2, 0.1, 0.03):
        point = next(point for point, gap in zip(path, gaps, strict=True) if gap <= limit)
        best = best_accuracy(probs, membership / membership.sum(0), limit)
        assert best - 0.01 < expected_accuracy(probs, point.decisions) <= best + 1e-9


def test_each_step_of_the_path_changes_one_decision() -> None:
    probs, membership, _ = population(300, 2)
    costs = correction_costs(probs, membership, membership.mean(0), positives=False)
    decisions = torch.stack([p.decisions for p in correction_path(probs, costs, membership)]).long()
    assert decisions.diff(dim=0).abs().sum(-1).eq(1).all()


def test_rates_by_membership_are_rates_by_group_for_known_groups() -> None:
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    decisions = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    rates = membership_rates(decisions, torch.nn.functional.one_hot(groups).double())
    assert rates.tolist() == pytest.approx([1 / 2, 2 / 3, 1.0])


def test_goal_is_reached_with_the_smallest_strength() -> None:
    probs, membership, labels = population(4000, 2)
    correction = Correction.fit(probs, membership[:, 1], target=labels, goal="dp=0.10", max_accuracy_loss=0.2)
    decisions = correction.decide(probs, membership[:, 1])
    gap = membership_rates(decisions.double(), membership).diff().abs().item()
    assert correction.outcome is not None
    assert correction.outcome.stopped_by == "goal"
    assert gap == pytest.approx(correction.outcome.gap_after)
    assert 0.10 - 1e-3 < gap <= 0.10  # one decision moves it by at most 1 / 2000


def test_budget_stops_a_goal_that_costs_too_much() -> None:
    probs, membership, labels = population(4000, 2)
    correction = Correction.fit(probs, membership, target=labels, goal="dp=0.01", max_accuracy_loss=0.01)
    outcome = correction.outcome
    assert outcome is not None
    assert outcome.stopped_by == "budget"
    assert 0.01 < outcome.gap_after < outcome.gap_before
    decisions = correction.decide(probs, membership)
    lost, error = measured_loss(probs, decisions, labels)
    assert 0 < lost <= 0.01 + error


def measured_loss(probs: Tensor, decisions: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the loss of accuracy by a correction, and its standard error."""
    lost = ((probs >= 0.5) == labels).double() - (decisions.bool() == labels).double()
    return float(lost.mean()), float(lost.std() / len(lost) ** 0.5)


def test_budget_is_kept_where_the_probabilities_are_wrong() -> None:
    probs, membership, labels = population(4000, 2)
    close = (probs - 0.5).abs() < 0.1  # each of these decisions is right, though the model is not certain
    labels = torch.where(close, probs >= 0.5, labels)
    correction = Correction.fit(probs, membership, target=labels, goal="dp", max_accuracy_loss=0.01)
    assert correction.outcome is not None
    assert correction.outcome.stopped_by == "budget"
    lost, error = measured_loss(probs, correction.decide(probs, membership), labels)
    assert 0.01 < lost <= 0.01 + error  # the loss expected from the probabilities is smaller


def test_collapse_stops_before_decisions_become_constant() -> None:
    generator = torch.Generator().manual_seed(0)
    member = torch.rand(2000, generator=generator, dtype=torch.float64)
    # Only some members of the group are accepted, and rarely: equal rates need other decisions.
    probs = torch.where(member > 0.95, 0.55, 0.3 + 0.1 * torch.rand(2000, generator=generator))
    labels = torch.rand(2000, generator=generator) < probs
    correction = Correction.fit(probs, member, target=labels, max_accuracy_loss=0.5)
    outcome = correction.outcome
    assert outcome is not None
    assert outcome.stopped_by == "collapse"
    assert outcome.share_after >= outcome.share_before / 2


def test_equal_opportunity_lowers_the_gap_of_the_positives() -> None:
    probs, membership, labels = population(4000, 2)
    correction = Correction.fit(probs, membership, target=labels, goal="eo", max_accuracy_loss=0.2)
    before = membership_rates((probs >= 0.5).double(), membership, labels).diff().abs()
    after = membership_rates(correction.decide(probs, membership).double(), membership, labels).diff().abs()
    assert after < 0.01 < before
    assert correction.goal.gap == "eo_gap"


def test_scores_are_half_or_more_exactly_for_positive_decisions() -> None:
    probs, membership, labels = population(1000, 3)
    correction = Correction.fit(probs, membership, target=labels, max_accuracy_loss=0.1)
    scores = correction.scores(probs, membership)
    assert torch.equal(scores >= 0.5, correction.decide(probs, membership).bool())
    assert bool(((scores > 0) & (scores < 1)).all())
    plain = Correction(torch.zeros(3), membership.mean(0))
    assert torch.allclose(plain.scores(probs, membership), probs, atol=1e-6)


def test_state_restores_the_correction() -> None:
    probs, membership, labels = population(1000, 2)
    correction = Correction.fit(probs, membership, target=labels, goal="eo=0.02", max_accuracy_loss=0.1)
    state = {f"correction.{name}": value for name, value in correction.state_dict().items()}
    restored = Correction.from_state(state)
    restored.load_state_dict(correction.state_dict())
    assert torch.equal(restored.decide(probs, membership), correction.decide(probs, membership))
    assert (restored.goal, restored.outcome) == (correction.goal, correction.outcome)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eodds=0.1", "expected dp=0.10"),
        ("dp=1.5", "gap from 0"),
        ("dp=x", "gap from 0"),
        ("dp=", "gap from 0"),
        ("pd=0.1", "did you mean 'dp'"),
    ],
)
def test_goals_that_do_not_exist(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Goal.parse(text)


def test_rows_that_do_not_match() -> None:
    probs, membership, labels = population(100, 2)
    with pytest.raises(InputError, match="expected one value of each per row"):
        Correction.fit(probs[:-1], membership, target=labels)
    with pytest.raises(InputError, match="from 0 to 1"):
        Correction.fit(3 * probs, membership, target=labels)
    with pytest.raises(InputError, match="one class"):
        Correction.fit(probs, membership, target=torch.ones(100))
    with pytest.raises(InputError, match="max_accuracy_loss"):
        Correction.fit(probs, membership, target=labels, max_accuracy_loss=-0.1)
    with pytest.raises(InputError, match="without missing values"):
        Correction.fit(probs, membership.clone().fill_(math.nan), target=labels)
    for wrong in (probs.logit(), probs.clone().fill_(math.nan)):
        with pytest.raises(InputError, match="probs: expected probabilities"):
            Correction(torch.zeros(2), torch.ones(2) / 2).decide(wrong, membership)
        with pytest.raises(InputError, match="scores: expected probabilities"):
            ScoredRows(wrong, torch.zeros(100, 1))
    with pytest.raises(InputError, match="as many scores, inputs"):
        ScoredRows(probs, torch.zeros(99, 1))
    with pytest.raises(InputError, match="act_above = nan"):
        Goal(act_above=math.nan)


def test_membership_of_two_groups_may_be_one_column() -> None:
    assert by_group(torch.tensor([0.25])).tolist() == [[0.75, 0.25]]
