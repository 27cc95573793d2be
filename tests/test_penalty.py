from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import Statistic, feature_penalties, solve_lambda
from fairrf_lightning.penalty import Given
from tests.ranks import run_on_ranks

RELATED = {"age": [0], "relationship": [3, 1]}
OWNER = torch.tensor([0, 1, 1])
COLUMNS = [0, 3, 1]
SKEWED = {"age": 0.25, "relationship": 0.75}


def draw(rows: int = 32, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, inputs with five columns, and labels that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 5, generator=generator, dtype=dtype)
    logits = inputs @ torch.tensor([1.0, -0.7, 0.5, 0.9, 0.1], dtype=dtype)
    target = (logits + torch.randn(rows, generator=generator, dtype=dtype) > 0).to(dtype)
    return logits, inputs, target


def penalties_of(logits: Tensor, inputs: Tensor, statistic: Statistic = "covariance") -> Tensor:
    return feature_penalties(logits.sigmoid(), inputs[:, COLUMNS], OWNER, 2, statistic=statistic)


# --- the value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("statistic", ["covariance", "correlation"])
def test_value_is_eta_times_the_weighted_sum(statistic: Statistic, training: bool) -> None:  # noqa: FBT001 - parametrised
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED, eta=0.7, statistic=statistic, initial_weights=SKEWED)
    penalty.train(training)
    age, relationship = penalties_of(logits, inputs, statistic).tolist()
    assert penalty(logits, inputs).shape == ()
    assert penalty(logits, inputs).item() == pytest.approx(0.7 * (0.25 * age + 0.75 * relationship))


def test_all_shapes_of_predictions_mean_the_same() -> None:
    logits, inputs, _ = draw(dtype=torch.float64)
    of_logits = RelatedFeaturePenalty(RELATED, output="softmax")
    of_probs = RelatedFeaturePenalty(RELATED, output="probability")
    probs = logits.sigmoid()
    offset = torch.randn(32, dtype=torch.float64)
    values = [
        of_logits(logits, inputs),
        of_logits(logits[:, None], inputs),
        of_logits(torch.stack([offset, offset + logits], dim=1), inputs),
        of_probs(probs, inputs),
        of_probs(probs[:, None], inputs),
        of_probs(torch.stack([1 - probs, probs], dim=1), inputs),
    ]
    assert values[0] > 0.01
    assert [v.item() for v in values] == pytest.approx([values[0].item()] * 6, abs=1e-14)


@pytest.mark.parametrize("outputs", [2, 3])
def test_predictions_of_unknown_meaning_are_refused(outputs: int) -> None:
    with pytest.raises(InputError, match=rf"shape \(32, {outputs}\).*output='softmax'"):
        RelatedFeaturePenalty(RELATED)(torch.zeros(32, outputs), draw()[1])


def test_given_positives_counts_the_positives_only() -> None:
    logits, inputs, target = draw()
    rows = target > 0.5
    penalty = RelatedFeaturePenalty(RELATED, given="positives")
    expected = RelatedFeaturePenalty(RELATED)(logits[rows], inputs[rows])
    for labels in (target, target.long(), rows):
        assert penalty(logits, inputs, labels).item() == pytest.approx(expected.item(), rel=1e-6)
    assert penalty(logits, inputs, torch.zeros(32)).item() == 0
    with pytest.raises(InputError, match="needs the labels"):
        penalty(logits, inputs)


@pytest.mark.parametrize("given", ["all", "positives"])
def test_stacked_models_are_penalised_each_with_its_eta_and_lambda(given: Given) -> None:
    _, inputs, target = draw()
    logits = torch.stack([draw(seed=seed)[0] for seed in range(3)])
    etas, betas = torch.tensor([0.0, 0.5, 2.0]), torch.tensor([0.1, 0.02, 0.05])
    stacked = RelatedFeaturePenalty(RELATED, eta=etas, given=given)
    value = stacked(logits, inputs, target)
    assert value.shape == (3,)
    stacked.update_weights(betas)
    after = stacked(logits, inputs, target)
    assert stacked.weights.shape == (3, 2)
    for m in range(3):
        # A whole number is an eta too; 1 keeps the model with eta = 0 gathering.
        single = RelatedFeaturePenalty(RELATED, eta=1, given=given)
        assert value[m].item() == pytest.approx(etas[m].item() * single(logits[m], inputs, target).item())
        single.update_weights(betas[m].item())
        torch.testing.assert_close(stacked.weights[m], single.weights)
        assert after[m].item() == pytest.approx(etas[m].item() * single(logits[m], inputs, target).item())


@pytest.mark.parametrize("off", ["disabled", "eta"])
def test_penalty_that_is_off_is_zero_and_gathers_nothing(off: str) -> None:
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED, eta=0.0 if off == "eta" else 1.0)
    penalty.enabled = off != "disabled"
    assert penalty(logits, inputs).item() == 0
    assert penalty.update_weights(0.5) is None
    assert penalty.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_predictions_are_penalised_in_float32(dtype: torch.dtype) -> None:
    logits, inputs, _ = draw()
    logits, inputs = logits.to(dtype), inputs.to(dtype)
    value = RelatedFeaturePenalty(RELATED)(logits, inputs)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, RelatedFeaturePenalty(RELATED)(logits.float(), inputs.float()))


def test_autocast_changes_no_bit_of_the_gradient() -> None:
    logits, inputs, _ = draw()
    logits.requires_grad_()
    expected = RelatedFeaturePenalty(RELATED)(logits, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = RelatedFeaturePenalty(RELATED)(logits, inputs)
    torch.testing.assert_close(value, expected)
    by_value, by_expected = (torch.autograd.grad(penalty, logits)[0] for penalty in (value, expected))
    assert torch.equal(by_value, by_expected)


def test_a_new_eta_counts_from_the_next_batch() -> None:
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED, eta=0.3)
    before = penalty(logits, inputs)
    penalty.eta = 0.6
    torch.testing.assert_close(penalty(logits, inputs), 2 * before)
    torch.testing.assert_close(penalty(logits.double(), inputs.double()).float(), 2 * before)
    half = penalty(logits[: len(logits) // 2], inputs[: len(logits) // 2])
    torch.testing.assert_close(
        half, RelatedFeaturePenalty(RELATED, eta=0.6)(logits[: len(logits) // 2], inputs[: len(logits) // 2])
    )


def test_a_trace_on_another_device_leaves_nothing_behind() -> None:
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED)
    expected = RelatedFeaturePenalty(RELATED)(logits, inputs)
    with torch.device("meta"):
        assert torch.equal(penalty(logits, inputs), expected)
    traced = RelatedFeaturePenalty(RELATED).eval()
    with pytest.raises(DataDependentOutputException), FakeTensorMode(allow_non_fake_inputs=True):
        traced(logits, inputs)  # fails at the check of the value, which a trace does not have
    assert torch.equal(traced(logits, inputs), expected)


# --- lambda --------------------------------------------------------------------------------------------


def gather(penalty: RelatedFeaturePenalty, steps: int) -> tuple[Tensor, Tensor]:
    """Run training steps of unequal size; return their logits and inputs together."""
    batches = [draw(rows=5 + step % 4, seed=step) for step in range(steps)]
    for logits, inputs, _ in batches:
        penalty(logits, inputs)
    return torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])


@pytest.mark.parametrize("statistic", ["covariance", "correlation"])
@pytest.mark.parametrize("steps", [1, 3, 63, 64, 65, 150])
def test_update_solves_for_the_rows_of_all_steps_together(steps: int, statistic: Statistic) -> None:
    penalty = RelatedFeaturePenalty(RELATED, statistic=statistic)
    pooled = penalties_of(*gather(penalty, steps), statistic)
    found = penalty.update_weights(beta=0.2)
    assert found is not None
    assert found.tolist() == pytest.approx(pooled.tolist(), abs=1e-6)
    assert penalty.weights.tolist() == pytest.approx(solve_lambda(pooled, 0.2).tolist(), abs=1e-5)
    assert penalty.weights[0] != penalty.weights[1]


def test_update_starts_gathering_anew() -> None:
    penalty = RelatedFeaturePenalty(RELATED)
    gather(penalty, 4)
    penalty.update_weights(0.2)
    weights = penalty.weights
    assert penalty.update_weights(0.2) is None
    assert penalty.weights is weights
    logits, inputs, _ = draw(seed=99)
    penalty(logits, inputs)
    found = penalty.update_weights(0.2)
    torch.testing.assert_close(found, penalties_of(logits, inputs))


@pytest.mark.parametrize("change", ["in place", "out of place", "eta", "loaded", "rows"])
def test_every_change_of_the_weights_counts_at_once(change: str) -> None:
    preds, inputs = torch.randn(32), torch.randn(32, 3)
    penalty = RelatedFeaturePenalty({"a": [0], "b": [2]}, eta=0.5)
    penalty(preds, inputs)
    other = RelatedFeaturePenalty({"a": [0], "b": [2]}, eta=0.5, initial_weights={"a": 0.9, "b": 0.1})
    match change:
        case "in place":
            penalty.weights.copy_(other.weights)
        case "out of place":
            penalty.weights = other.weights.clone()
        case "eta":
            penalty.eta = other.eta = 2.0
            other.weights = penalty.weights
        case "loaded":
            penalty.load_state_dict(other.state_dict())
        case "rows":
            preds, inputs = preds[:7], inputs[:7]
            other.weights = penalty.weights
    torch.testing.assert_close(penalty(preds, inputs), other(preds, inputs), rtol=0, atol=0)


def test_evaluation_gathers_nothing() -> None:
    penalty = RelatedFeaturePenalty(RELATED).eval()
    gather(penalty, 2)
    assert penalty.update_weights(0.5) is None


def test_update_between_forward_and_backward_keeps_the_gradient() -> None:
    logits, inputs, _ = draw()
    logits.requires_grad_()
    penalty = RelatedFeaturePenalty(RELATED)
    (expected,) = torch.autograd.grad(penalty(logits, inputs), logits)
    value = penalty(logits, inputs)
    penalty.update_weights(0.01)
    assert penalty.weights.tolist() != [0.5, 0.5]
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.equal(gradient, expected)


def test_diverged_predictions_are_told() -> None:
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED)
    penalty(logits * math.nan, inputs)
    with pytest.raises(InputError, match=r"'age': nan.*not finite.*learning rate"):
        penalty.update_weights(0.5)


def test_diverged_predictions_of_stacked_models_are_told() -> None:
    logits, inputs, _ = draw()
    penalty = RelatedFeaturePenalty(RELATED, eta=torch.ones(3))
    penalty(torch.stack([logits, logits, logits * math.nan]), inputs)
    with pytest.raises(InputError, match="not finite"):
        penalty.update_weights(0.5)


# --- precision, device, state --------------------------------------------------------------------------


def as_bfloat16(module: nn.Module) -> nn.Module:
    return module.to(torch.bfloat16)


@pytest.mark.parametrize("cast", [as_bfloat16, nn.Module.half, nn.Module.double])
def test_lambda_stays_exact_in_any_precision(cast: Callable[[nn.Module], nn.Module]) -> None:
    eta = torch.tensor([0.1, 1 / 3])
    penalty = RelatedFeaturePenalty({"age": [0], "zip": [1], "height": [2]}, eta=eta)
    whole = cast(nn.ModuleDict({"net": nn.Linear(2, 1), "penalty": penalty}))
    assert whole.get_parameter("net.weight").dtype != torch.float32
    assert torch.equal(penalty.weights, torch.full((2, 3), 1 / 3))
    assert isinstance(penalty.eta, Tensor)
    assert torch.equal(penalty.eta, eta)


def test_cast_penalty_still_moves() -> None:
    penalty = RelatedFeaturePenalty(RELATED, eta=torch.ones(2)).to("meta", torch.bfloat16)
    assert {name: (b.device.type, b.dtype) for name, b in penalty.named_buffers()} == {
        "eta": ("meta", torch.float32),
        "weights": ("meta", torch.float32),
        "columns": ("meta", torch.int64),
        "column_feature": ("meta", torch.int64),
    }


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("steps", [0, 1, 40, 100])
def test_loaded_penalty_goes_on_where_the_saved_one_was(steps: int) -> None:
    first, second = RelatedFeaturePenalty(RELATED), RelatedFeaturePenalty(RELATED, initial_weights=SKEWED)
    gather(first, 7)
    first.update_weights(0.02)
    if steps:
        gather(first, steps)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert torch.equal(second.weights, first.weights)
    logits, inputs, _ = draw(seed=99)
    for penalty in (first, second):
        penalty(logits, inputs)
    found, expected = second.update_weights(0.02), first.update_weights(0.02)
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)
    assert torch.equal(second.weights, first.weights)


def test_copy_is_independent() -> None:
    first = RelatedFeaturePenalty(RELATED)
    logits, inputs = gather(first, 3)
    second = copy.deepcopy(first)
    torch.testing.assert_close(second.update_weights(0.02), penalties_of(logits, inputs))
    assert first.weights.tolist() == [0.5, 0.5]
    first.update_weights(0.02)
    assert torch.equal(first.weights, second.weights)


# --- arguments -----------------------------------------------------------------------------------------


def test_initial_weights_follow_the_order_of_the_features() -> None:
    penalty = RelatedFeaturePenalty(RELATED, initial_weights={"relationship": 0.75, "age": 0.25})
    assert penalty.weights.tolist() == [0.25, 0.75]
    assert RelatedFeaturePenalty({"a": [0], "b": [1], "c": [2]}).weights.tolist() == pytest.approx(
        [1 / 3] * 3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"related": {}}, "at least one related feature"),
        ({"related": {"age": []}}, r"related\['age'\] = \[\]"),
        ({"related": {"age": [0], "zip": [-1]}}, r"related\['zip'\] = \[-1\]"),
        ({"related": {"age": [0.5]}}, r"related\['age'\] = \[0\.5\]"),
        ({"statistic": "cosine"}, "statistic = 'cosine'.*'covariance', 'correlation'"),
        ({"given": "negatives"}, "given = 'negatives'.*'all', 'positives'"),
        ({"eta": -0.1}, r"eta = -0\.1"),
        ({"eta": math.nan}, "eta = nan"),
        ({"eta": torch.tensor([0.1, -0.1])}, r"eta = tensor\(\[ 0\.1"),
        ({"initial_weights": {"age": 1.0}}, "each of age, relationship"),
        ({"initial_weights": {"age": 0.5, "relationship": 0.6}}, "adding up to 1"),
        ({"initial_weights": {"age": -0.5, "relationship": 1.5}}, "0 or more"),
        ({"initial_weights": {"age": 0.5, "relationship": 0.5, "zip": 0.0}}, "each of age, relationship"),
        ({"initial_weights": {"age": math.nan, "relationship": 1.0}}, "0 or more"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RelatedFeaturePenalty(**{"related": RELATED, **options})


# --- training: the penalty against exact solutions -----------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5, 3.0])
def test_penalised_least_squares_reaches_the_exact_solution(share: float) -> None:
    """Minimise |X w - y|^2 / N + eta |c' w|, where c' w is the covariance of column 0 with the score.

    With G = X'X / N and w0 the least squares fit, |c' w| reaches 0 at eta* = 2 |c' w0| / (c' G^-1 c):
    below, w = w0 - eta / 2 sign(c' w0) G^-1 c; from there on, w is the fit under the constraint c' w = 0.
    """
    _, inputs, _ = draw(rows=200, dtype=torch.float64)
    target = inputs @ torch.tensor([1.0, -0.5, 0.2, 0.0, 0.3], dtype=torch.float64)
    gram = inputs.T @ inputs / 200
    covariances = (inputs - inputs.mean(0)).T @ (inputs[:, 0] - inputs[:, 0].mean()) / 200
    free = torch.linalg.solve(gram, inputs.T @ target / 200)
    direction = torch.linalg.solve(gram, covariances)
    critical = 2 * (covariances @ free).abs() / (covariances @ direction)
    step = min(share, 1.0) * critical / 2 * (covariances @ free).sign()

    penalty = RelatedFeaturePenalty({"age": [0]}, eta=share * critical.item(), output="regression")
    weights = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    for _ in range(600):
        score = inputs @ weights
        loss = (score - target).square().mean() + penalty(score, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert weights.tolist() == pytest.approx((free - step * direction).tolist(), abs=1e-4)
    remaining = abs(covariances @ weights.detach()) / abs(covariances @ free)
    assert remaining.item() == pytest.approx(max(0.0, 1 - share), abs=1e-4)


@pytest.mark.parametrize("statistic", ["covariance", "correlation"])
def test_large_eta_drives_the_penalties_of_a_classifier_to_zero(statistic: Statistic) -> None:
    _, inputs, target = draw(rows=300)

    def trained(eta: float) -> tuple[list[float], float]:
        penalty = RelatedFeaturePenalty(RELATED, eta=eta, statistic=statistic)
        coefficients = torch.full((5,), 0.1, requires_grad=True)
        optimizer = torch.optim.Adam([coefficients], lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        for _ in range(300):
            logits = inputs @ coefficients
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad()
            (loss + penalty(logits, inputs)).backward()
            optimizer.step()
            schedule.step()
        logits = inputs @ coefficients.detach()
        accuracy = ((logits > 0) == (target > 0.5)).float().mean().item()
        return penalties_of(logits, inputs, statistic).tolist(), accuracy

    (vanilla, accuracy), (fair, fair_accuracy) = trained(0.0), trained(20.0)
    assert all(after < 0.02 * before for after, before in zip(fair, vanilla, strict=True))
    assert 0.5 < fair_accuracy < accuracy


# --- two processes -------------------------------------------------------------------------------------

SCENARIOS: dict[str, tuple[list[int], Given, Statistic]] = {
    "hsic": ([0, 9, 32], "all", "hsic"),
    "hsic, positives": ([0, 12, 32], "positives", "hsic"),
    "equal": ([0, 16, 32], "all", "covariance"),
    "unequal": ([0, 5, 32], "all", "covariance"),
    "unequal, correlation": ([0, 27, 32], "all", "correlation"),
    "positives": ([0, 12, 32], "positives", "covariance"),
    "positives on one rank": ([0, 20, 32], "positives", "correlation"),
}


def scenario(name: str) -> tuple[RelatedFeaturePenalty, Tensor, Tensor, Tensor]:
    """Return a penalty, coefficients of a linear classifier, inputs and labels, all in float64."""
    limits, given, statistic = SCENARIOS[name]
    _, inputs, target = draw(dtype=torch.float64)
    if name == "positives on one rank":
        target[limits[1] :] = 0
    coefficients = torch.linspace(-0.5, 1, 5, dtype=torch.float64).requires_grad_()
    penalty = RelatedFeaturePenalty(RELATED, eta=0.7, given=given, statistic=statistic)
    return penalty, coefficients, inputs, target


def outcome(name: str, rows: slice) -> dict[str, Tensor]:
    """Return value, gradient and the lambda that follows, of a training step on these rows."""
    penalty, coefficients, inputs, target = scenario(name)
    value = penalty(inputs[rows] @ coefficients, inputs[rows], target[rows])
    (gradient,) = torch.autograd.grad(value, coefficients)
    penalty.update_weights(0.02)
    return {"value": value.detach(), "gradient": gradient, "weights": penalty.weights}


def outcomes(ranks: int) -> list[dict[str, dict[str, Tensor]]]:
    """Return the outcomes of all ranks, each with its own rows."""
    dist.init_process_group("gloo")
    rank, results = dist.get_rank(), {}
    for name, (limits, _, _) in SCENARIOS.items():
        results[name] = outcome(name, slice(limits[rank], limits[rank + 1]))
        dist.all_reduce(results[name]["gradient"])
        results[name]["gradient"] /= ranks  # as DDP does
    gathered = [results] * ranks
    dist.all_gather_object(gathered, results)
    dist.destroy_process_group()
    return gathered


def test_step_on_two_processes_is_the_step_of_one_on_all_rows(tmp_path: Path) -> None:
    ranks = run_on_ranks(outcomes, tmp_path, timeout=60)
    for name in SCENARIOS:
        single = outcome(name, slice(None))
        assert single["value"] > 0.01
        for rank in ranks:
            torch.testing.assert_close(rank[name], single, rtol=1e-12, atol=1e-12, msg=name)
        for key in single:
            assert torch.equal(ranks[0][name][key], ranks[1][name][key]), f"{name}: {key} differs"


def test_each_stacked_model_may_have_its_own_features() -> None:
    feature_mask = torch.tensor([[True, False, True], [True, True, True]])
    related = {"a": [0], "b": [1], "c": [2]}
    penalty = RelatedFeaturePenalty(related, eta=torch.ones(2), feature_mask=feature_mask)
    torch.testing.assert_close(penalty.weights, torch.tensor([[1 / 2, 0, 1 / 2], [1 / 3] * 3]))
    penalty(torch.randn(2, 30), torch.randn(30, 3))
    penalty.update_weights(10.0)
    assert (penalty.weights > 0).tolist() == feature_mask.tolist()
    assert "feature_mask" not in penalty.state_dict()


@pytest.mark.parametrize("feature_mask", [torch.tensor([[True], [False]]), torch.tensor([True])])
def test_models_without_features_are_refused(feature_mask: Tensor) -> None:
    with pytest.raises(InputError, match="feature_mask"):
        RelatedFeaturePenalty({"a": [0]}, eta=torch.ones(2), feature_mask=feature_mask)


def test_the_state_counts_penalised_steps_and_updates() -> None:
    penalty = RelatedFeaturePenalty({"age": [0], "job": [1]}, eta=0.5)
    inputs, logits = torch.randn(20, 2), torch.randn(20)
    penalty.enabled = False
    penalty(logits, inputs)
    penalty.enabled = True
    penalty(logits, inputs)
    penalty(logits, inputs)
    penalty.update_weights(beta=0.5)
    penalty.eval()(logits, inputs)

    restored = RelatedFeaturePenalty({"age": [0], "job": [1]})
    restored.load_state_dict(penalty.state_dict())

    assert (restored.penalised_steps, restored.updates) == (2, 1)


@pytest.mark.parametrize(
    "damage", [{"penalised_steps": ""}, {"updates": None}, {"updates": True}, {"pending": []}]
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    penalty = RelatedFeaturePenalty({"age": [0]})
    with pytest.raises(InputError, match="state of the penalty is damaged"):
        penalty.set_extra_state(penalty.get_extra_state() | damage)


def test_eta_as_a_tensor_is_read_in_each_step() -> None:
    penalty = RelatedFeaturePenalty({"age": [0]}, eta=1.0)
    inputs, logits = torch.randn(50, 1), torch.randn(50)
    penalty.eta = torch.tensor(0.5, requires_grad=True)
    half = penalty(logits, inputs)
    half.backward()
    assert penalty.eta.grad is not None
    assert penalty.eta.grad.item() == pytest.approx(2 * half.item())
    with torch.no_grad():
        penalty.eta.mul_(10)
    assert penalty(logits, inputs).item() == pytest.approx(10 * half.item(), rel=1e-6)


def test_lambda_changed_behind_autograd_is_used() -> None:
    penalty = RelatedFeaturePenalty({"age": [0], "zip": [1]}, eta=1.0)
    inputs, logits = torch.randn(50, 2), torch.randn(50, requires_grad=True)
    penalty(logits, inputs)
    penalty.weights.data.copy_(torch.tensor([1.0, 0.0]))
    expected = penalty.penalties(penalty.moments(logits.sigmoid(), inputs))[0]
    assert penalty(logits, inputs).item() == pytest.approx(expected.item(), rel=1e-6)
    with torch.inference_mode():
        penalty.update_weights(beta=0.5)
    penalty(logits, inputs).backward()
    assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def test_empty_batch_has_no_penalty() -> None:
    penalty = RelatedFeaturePenalty({"age": [0]}, eta=1.0)
    assert float(penalty(torch.randn(0), torch.randn(0, 1))) == 0


def test_a_column_that_is_missing_in_all_rows_is_refused() -> None:
    penalty = RelatedFeaturePenalty({"age": [0], "zip": [1]}, eta=1.0, missing="skip")
    inputs = torch.randn(50, 2)
    inputs[:, 1] = torch.nan
    with pytest.raises(InputError, match="'zip', column 1: with missing='skip' no row of the first batch"):
        penalty(torch.randn(50), inputs)
