"""The penalty on several outputs, non-linear dependence, category codes and missing values."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import (
    PROBABILITY_WIDTH,
    feature_penalties,
    fourier_features,
    fourier_frequencies,
)
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.related import Categorical
from tests.ranks import run_on_ranks

RELATED = {"age": [0], "relationship": [3, 1]}


def draw(rows: int = 40, outputs: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits ``(N, P)`` and the inputs that they depend on, in float64."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return inputs @ torch.randn(5, outputs, generator=generator, dtype=torch.float64), inputs


def by_hand(preds: Tensor, inputs: Tensor) -> float:
    """Mean over the two features of the sums of |cov| over columns and outputs, by NumPy."""
    total = 0.0
    for columns in RELATED.values():
        for column in columns:
            for output in preds.T:
                total += abs(np.cov(inputs[:, column], output, bias=True)[0, 1]) / 2
    return total


@pytest.mark.parametrize(
    ("output", "change"),
    [
        ("softmax", lambda logits: logits.softmax(1)),
        ("sigmoid", torch.sigmoid),
        ("regression", lambda numbers: numbers),
    ],
)
def test_penalties_of_the_outputs_are_added_up(output: Any, change: Any) -> None:
    logits, inputs = draw()
    penalty = RelatedFeaturePenalty(RELATED, eta=0.7, output=output)
    assert penalty(logits, inputs).item() == pytest.approx(0.7 * by_hand(change(logits), inputs), rel=1e-12)
    chosen = RelatedFeaturePenalty(RELATED, eta=0.7, output=output, classes=[2, 0])
    expected = 0.7 * by_hand(change(logits)[:, [2, 0]], inputs)
    assert chosen(logits, inputs).item() == pytest.approx(expected, rel=1e-12)
    of_one = RelatedFeaturePenalty(RELATED, eta=0.7, output=output, classes=[1])
    assert of_one(logits, inputs).item() == pytest.approx(0.7 * by_hand(change(logits)[:, [1]], inputs))


def test_two_classes_have_the_gradient_of_one_logit_bit_for_bit() -> None:
    logits, inputs = draw(outputs=2)
    logits.requires_grad_()
    two = RelatedFeaturePenalty(RELATED, output="softmax")(logits, inputs)
    one = RelatedFeaturePenalty(RELATED)(logits[:, 1] - logits[:, 0], inputs)
    torch.testing.assert_close(two, one)
    assert torch.equal(torch.autograd.grad(two, logits)[0], torch.autograd.grad(one, logits)[0])
    logits = logits.detach()
    assert torch.equal(
        RelatedFeaturePenalty(RELATED, output="softmax")(logits[:, 0], inputs),
        RelatedFeaturePenalty(RELATED, output="sigmoid")(logits[:, 0], inputs),
    )


@pytest.mark.parametrize("statistic", ["covariance", "correlation", "hsic"])
@pytest.mark.parametrize("output", ["softmax", "regression"])
def test_gradients_and_updates_of_several_outputs(statistic: str, output: Any) -> None:
    logits, inputs = draw(rows=9)
    penalty = RelatedFeaturePenalty(RELATED, statistic=statistic, output=output)

    def value(logits: Tensor) -> Tensor:
        result: Tensor = penalty(logits, inputs)
        return result

    assert torch.autograd.gradcheck(value, (logits.requires_grad_(),))
    penalty.reset()
    batches = [draw(rows=5 + step, seed=step) for step in range(3)]
    for batch in batches:
        penalty(*batch)
    found = penalty.update_weights(0.2)
    whole = penalty.moments(
        penalty.probabilities(torch.cat([b[0] for b in batches])), torch.cat([b[1] for b in batches])
    )
    torch.testing.assert_close(found, penalty.penalties(whole))


def test_stacked_models_may_have_several_outputs() -> None:
    (first, inputs), (second, _) = draw(seed=1), draw(seed=2)
    stacked = RelatedFeaturePenalty(RELATED, eta=torch.tensor([0.5, 2.0]), output="softmax")
    values = stacked(torch.stack([first, second]), inputs)
    singles = [RelatedFeaturePenalty(RELATED, eta=1, output="softmax")(x, inputs) for x in (first, second)]
    assert values.tolist() == pytest.approx([0.5 * singles[0].item(), 2 * singles[1].item()])


@pytest.mark.parametrize(("outputs", "statistic"), [(3, "covariance"), (1, "hsic")])
def test_stacked_models_may_have_rows_of_their_own(outputs: int, statistic: str) -> None:
    drawn = [draw(seed=seed, outputs=outputs) for seed in (1, 2)]
    options: dict[str, Any] = {"statistic": statistic} | ({"output": "softmax"} if outputs > 1 else {})
    stacked = RelatedFeaturePenalty(RELATED, eta=torch.tensor([1.0, 1.0]), **options)
    values = stacked(*(torch.stack(part) for part in zip(*drawn, strict=True)))
    singles = [RelatedFeaturePenalty(RELATED, eta=1, **options)(*one) for one in drawn]
    torch.testing.assert_close(values, torch.stack(singles))


@pytest.mark.parametrize(("outputs", "statistic"), [(3, "covariance"), (3, "hsic"), (1, "hsic")])
def test_metric_of_batches_is_that_of_all_rows(outputs: int, statistic: str) -> None:
    logits, inputs = draw(outputs=outputs)
    penalty = RelatedFeaturePenalty(RELATED, output="softmax", statistic=statistic)
    probs = penalty.probabilities(logits)
    whole = penalty.penalties(penalty.moments(probs, inputs))
    metric = FeaturePenalties(RelatedFeaturePenalty(RELATED, output="softmax", statistic=statistic))
    metric.update(probs[:7], inputs[:7])
    metric.update(probs[7:], inputs[7:])
    torch.testing.assert_close(metric.compute(), whole)


@pytest.mark.parametrize(
    ("options", "preds", "message"),
    [
        ({"output": "logits"}, None, "output = 'logits'.*'softmax'"),
        ({"classes": []}, None, r"classes = \[\]"),
        ({"classes": [-1]}, None, r"classes = \[-1\]"),
        ({"missing": "drop"}, None, "missing = 'drop'"),
        ({"classes": [3], "output": "softmax"}, torch.zeros(40, 3), "the predictions have 0 to 2"),
        ({"output": "probability"}, torch.full((40,), 1.5), r"outside \[0, 1\]"),
        ({"output": "probability"}, torch.full((40, 2), 0.9), "do not add up to 1"),
        ({"output": "softmax"}, torch.zeros(40, 3, 2), r"shape \(40, 3, 2\)"),
    ],
)
def test_impossible_outputs_are_refused(options: dict[str, Any], preds: Tensor | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RelatedFeaturePenalty(RELATED, **options)(preds, draw()[1])


# --- probabilities taken for logits ----------------------------------------------------------------------


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Sequential(nn.Sigmoid(), nn.Flatten(0))])
def test_probabilities_without_output_are_warned_about_in_the_first_batch(last: nn.Module) -> None:
    logits, inputs = draw(outputs=1)
    penalty = RelatedFeaturePenalty(RELATED)
    with pytest.warns(UserWarning, match=r"all predictions lie in \[0, 1\].*output='probability'"):
        penalty(last(logits.requires_grad_()), inputs)
    penalty(last(logits), inputs)  # once


def test_small_logits_of_an_untrained_model_are_not_warned_about() -> None:
    logits, inputs = draw(outputs=1)
    penalty = RelatedFeaturePenalty(RELATED)
    for _ in range(9):
        penalty(logits.sigmoid(), inputs)
    penalty(logits, inputs)
    lasting = RelatedFeaturePenalty(RELATED)
    for _ in range(9):
        lasting(logits.sigmoid(), inputs)
    with pytest.warns(UserWarning, match="although logits are expected"):
        lasting(logits.sigmoid(), inputs)


# --- hsic ------------------------------------------------------------------------------------------------


def hsic_of_kernels(x: Tensor, p: Tensor, frequencies: Tensor) -> float:
    """Return the root of tr(K H L H) / n^2 with the kernels that the features span."""
    of_x, of_p = fourier_features(x, frequencies), fourier_features(p, frequencies, PROBABILITY_WIDTH)
    rows = len(x)
    centring = torch.eye(rows, dtype=torch.float64) - 1 / rows
    product = (of_x @ of_x.T) @ centring @ (of_p @ of_p.T) @ centring
    return math.sqrt(torch.trace(product).item()) / rows


def test_hsic_is_that_of_the_kernels() -> None:
    logits, inputs = draw(outputs=1)
    probs = logits[:, 0].sigmoid()
    found = feature_penalties(probs, inputs[:, [0, 3, 1]], torch.tensor([0, 1, 1]), 2, statistic="hsic")
    each = [hsic_of_kernels(inputs[:, column], probs, fourier_frequencies(16)) for column in (0, 3, 1)]
    assert found.tolist() == pytest.approx([each[0], each[1] + each[2]], rel=1e-9)


def test_features_approximate_the_gaussian_kernel() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    features = fourier_features(x, fourier_frequencies(20_000), width=0.7)
    exact = (-((x[:, None] - x) ** 2) / (2 * 0.7**2)).exp()
    torch.testing.assert_close(features @ features.T, exact, rtol=0, atol=0.04)


def test_hsic_sees_what_the_covariance_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 4000, 1, generator=generator).unbind()
    probs = (x[:, 0].square() - 1).sigmoid()
    scores = {
        (statistic, name): feature_penalties(probs, column, torch.tensor([0]), 1, statistic=statistic).item()
        for statistic in ("covariance", "hsic")
        for name, column in (("dependent", x), ("independent", other))
    }
    assert scores["covariance", "dependent"] < 0.02
    assert scores["hsic", "dependent"] > 10 * scores["hsic", "independent"]


def test_hsic_resumes_with_the_same_bits() -> None:
    logits, inputs = draw(outputs=1)
    first = RelatedFeaturePenalty(RELATED, statistic="hsic")
    assert first.frequencies is not None
    first.frequencies.mul_(1.5)  # as another version of torch might draw them
    first(logits, inputs)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = RelatedFeaturePenalty(RELATED, statistic="hsic")
    second.load_state_dict(torch.load(file, weights_only=True))
    for penalty in (first, second):
        penalty(logits.flip(0), inputs)
        penalty.update_weights(0.1)
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first(logits, inputs), second(logits, inputs))


def test_hsic_of_columns_that_are_not_standardised_is_warned_about() -> None:
    logits, inputs = draw(outputs=1)
    with pytest.warns(UserWarning, match=r"column 0 has a standard deviation of .* Standardise"):
        RelatedFeaturePenalty({"age": [0]}, statistic="hsic")(logits, inputs * 1000)


# --- categories ------------------------------------------------------------------------------------------


def coded(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, inputs with codes 0 to 3 in column 2, and the same inputs one-hot."""
    logits, inputs = draw(outputs=1)
    codes = torch.arange(40) % 4
    inputs[:, 2] = codes.double()
    logits[:, 0] += 0.4 * codes**2
    return logits, inputs.to(dtype), torch.cat([inputs, nn.functional.one_hot(codes, 4)], 1)


def test_categories_are_encoded_one_hot() -> None:
    logits, inputs, one_hot = coded()
    penalty = RelatedFeaturePenalty({"age": [0], "job": Categorical(2, num_categories=4)})
    by_hand = RelatedFeaturePenalty({"age": [0], "job": [5, 6, 7, 8]})
    assert penalty(logits, inputs).item() == pytest.approx(by_hand(logits, one_hot).item(), rel=1e-12)
    assert penalty.update_weights(0.1) is not None


def test_codes_of_integer_inputs_are_refused() -> None:
    logits, inputs, one_hot = coded(torch.int64)
    with pytest.raises(InputError, match=r"(?s)'job'.*\{'job': Categorical\(2, num_categories=4\)\}"):
        RelatedFeaturePenalty({"job": [2]})(logits, inputs)
    penalty = RelatedFeaturePenalty({"job": Categorical(2, num_categories=4)})
    expected = RelatedFeaturePenalty({"job": [5, 6, 7, 8]})(logits, one_hot)
    assert penalty(logits, inputs).item() == pytest.approx(expected.item(), rel=1e-12)


def test_whole_numbers_of_a_float_column_are_warned_about_once() -> None:
    logits, inputs, _ = coded()
    penalty = RelatedFeaturePenalty({"job": [2]})
    with pytest.warns(UserWarning, match=r"category codes.*Categorical\(2, num_categories=4\)"):
        penalty(logits, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penalty(logits, inputs)
        RelatedFeaturePenalty({"sex": [2]})(logits, inputs.clamp(max=1))  # two values are no codes


@pytest.mark.parametrize(
    ("code", "message"), [(4.0, "row 7.*the code is 4.0, expected 0 to 3"), (1.5, "1.5")]
)
def test_unknown_codes_are_refused(code: float, message: str) -> None:
    logits, inputs, _ = coded()
    inputs[7, 2] = code
    with pytest.raises(InputError, match=message):
        RelatedFeaturePenalty({"job": Categorical(2, num_categories=4)})(logits, inputs)


@pytest.mark.parametrize(("column", "categories"), [(-1, 4), (2, 1)])
def test_impossible_categories_are_refused(column: int, categories: int) -> None:
    with pytest.raises(InputError, match="expected"):
        Categorical(column, num_categories=categories)


# --- missing values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("statistic", ["covariance", "correlation", "hsic"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_missing_values_are_named_at_once_or_left_out(bad: float, statistic: str, outputs: int) -> None:
    logits, inputs = draw(outputs=outputs)
    clean = RelatedFeaturePenalty(RELATED, statistic=statistic, output="softmax")(logits[1:], inputs[1:])
    moved = torch.roll(inputs, 5, 0)
    moved[5, 1] = bad
    logits = torch.roll(logits, 5, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match=r"'relationship', column 1, row 5 of the batch: the value is"):
            RelatedFeaturePenalty(RELATED, statistic=statistic, output="softmax")(logits, moved)
        skipping = RelatedFeaturePenalty(RELATED, statistic=statistic, output="softmax", missing="skip")
        assert skipping(logits, moved).item() == pytest.approx(clean.item(), rel=1e-12)


def test_missing_values_among_rows_that_do_not_count_are_fine() -> None:
    logits, inputs = draw(outputs=1)
    target = torch.arange(40) % 2
    inputs[4, 0] = math.nan
    penalty = RelatedFeaturePenalty(RELATED, given="positives")
    assert penalty(logits, inputs, target).isfinite()
    with pytest.raises(InputError, match="row 4 "):
        penalty(logits, inputs, 1 - target)


def test_missing_code_is_a_missing_value() -> None:
    logits, inputs, one_hot = coded()
    inputs[3, 2] = math.nan
    job = {"job": Categorical(2, num_categories=4)}
    with pytest.raises(InputError, match="'job', column 2, row 3"):
        RelatedFeaturePenalty(job)(logits, inputs)
    rest = torch.arange(40) != 3
    expected = RelatedFeaturePenalty({"job": [5, 6, 7, 8]})(logits[rest], one_hot[rest])
    assert RelatedFeaturePenalty(job, missing="skip")(logits, inputs).item() == pytest.approx(expected.item())


def test_diverged_predictions_are_no_missing_values() -> None:
    logits, inputs = draw(outputs=1)
    assert RelatedFeaturePenalty(RELATED)(logits * math.nan, inputs).isnan()


# --- two processes ---------------------------------------------------------------------------------------


def outcome(rows: slice, options: dict[str, Any]) -> dict[str, Tensor]:
    _, inputs = draw()
    inputs[:, 2] = torch.arange(40) % 4
    coefficients = torch.linspace(-0.5, 1, 15, dtype=torch.float64).reshape(5, 3).requires_grad_()
    related: dict[str, Any] = {"age": [0], "job": Categorical(2, num_categories=4)}
    penalty = RelatedFeaturePenalty(related, **options)
    value = penalty(inputs[rows] @ coefficients, inputs[rows])
    (gradient,) = torch.autograd.grad(value, coefficients)
    penalty.update_weights(0.02)
    return {"value": value.detach(), "gradient": gradient, "weights": penalty.weights}


CASES: list[dict[str, Any]] = [
    {"output": "softmax"},
    {"output": "sigmoid", "statistic": "correlation", "classes": [2, 1]},
    {"output": "regression", "statistic": "hsic"},
]


def step_on_ranks(ranks: int) -> list[dict[str, Tensor]]:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    limits = [0, 11, 40]
    results = [outcome(slice(limits[rank], limits[rank + 1]), options) for options in CASES]
    for result in results:
        torch.distributed.all_reduce(result["gradient"])
        result["gradient"] /= ranks  # as DDP does
    inputs = draw()[1]
    inputs[5, 0] = math.nan  # on rank zero only
    for part in (inputs[limits[rank] : limits[rank + 1]],):
        with pytest.raises(InputError, match="'age', column 0"):
            RelatedFeaturePenalty({"age": [0]})(part.sum(1).nan_to_num(), part)
    torch.distributed.destroy_process_group()
    return results


def test_several_outputs_are_exact_over_ranks(tmp_path: Path) -> None:
    for found, options in zip(run_on_ranks(step_on_ranks, tmp_path, timeout=60), CASES, strict=True):
        single = outcome(slice(None), options)
        assert single["value"] > 0.01
        torch.testing.assert_close(found, single, rtol=1e-10, atol=1e-10, msg=str(options))
