"""The objective compares epochs by one function, whatever lambda each of them has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.experiments import Schedule, Setting, Stack
from fairrf_lightning.functional import Rule, lambda_cost, solve_lambda
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from tests.test_module import RELATED, PeopleData
from tests.trainers import quiet_trainer

FOUND = torch.tensor([0.3, 0.1, 0.05])


def simplex(points: int = 60) -> Tensor:
    """Return a grid of weights of three features."""
    grid = [(i, j, points - i - j) for i in range(points + 1) for j in range(points + 1 - i)]
    return torch.tensor(grid) / points


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.5, 3.0])
def test_the_cost_is_the_optimum_over_the_simplex(beta: float) -> None:
    weights = simplex()
    linear, spread = weights @ FOUND, beta * weights.square().sum(-1)
    lowest, highest = (linear + spread).min(), (linear - spread).max()
    assert float(lambda_cost(FOUND, beta)) == pytest.approx(float(lowest), abs=2e-3 * (1 + beta))
    assert float(lambda_cost(FOUND, beta)) <= float(lowest) + 1e-6
    worst = lambda_cost(FOUND, beta, "worst_case")
    assert float(worst) == pytest.approx(float(highest), abs=2e-3 * (1 + beta))
    assert float(worst) >= float(highest) - 1e-6


@pytest.mark.parametrize("rule", ["kkt", "worst_case"])
def test_the_cost_does_not_depend_on_the_lambda_of_the_epoch(rule: Rule) -> None:
    penalty = RelatedFeaturePenalty({"a": [0], "b": [1], "c": [2]}, eta=0.7)
    penalty.beta, penalty.rule = 0.1, rule
    values = []
    for weights in (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])):
        penalty.weights = weights
        values.append(float(penalty.objective(FOUND)))
    assert values[0] == values[1] == pytest.approx(0.7 * float(lambda_cost(FOUND, 0.1, rule)))
    assert float(penalty.total(FOUND)) == pytest.approx(0.7 * 0.05)


def test_a_model_that_is_better_in_each_feature_is_never_ranked_behind() -> None:
    """With the lambda of each epoch and without beta |lambda|^2 it could be."""
    penalty = RelatedFeaturePenalty({"a": [0], "b": [1], "c": [2]}, eta=1.0)
    penalty.beta = 0.5
    worse, better = torch.tensor([0.02, 0.5, 0.5]), torch.tensor([0.02, 0.4, 0.4])
    penalty.weights = solve_lambda(worse, 0.1)
    before = float(penalty.total(worse))
    penalty.weights = torch.full((3,), 1 / 3)
    assert float(penalty.total(better)) > before
    assert float(penalty.objective(better)) < float(penalty.objective(worse))


def test_a_fixed_lambda_is_taken_as_it_is() -> None:
    penalty = RelatedFeaturePenalty({"a": [0], "b": [1], "c": [2]}, eta=0.7)
    assert torch.equal(penalty.objective(FOUND), penalty.total(FOUND))


def test_stacked_models_have_the_cost_of_single_ones() -> None:
    feature_mask = torch.tensor([[True, True, True], [True, False, True]])
    stacked = RelatedFeaturePenalty(
        {"a": [0], "b": [1], "c": [2]}, eta=torch.tensor([0.3, 0.9]), feature_mask=feature_mask
    )
    stacked.beta = torch.tensor([0.2, 0.5], dtype=torch.float64)
    whole, part = lambda_cost(FOUND, 0.2), lambda_cost(FOUND[[0, 2]], 0.5)
    torch.testing.assert_close(stacked.objective(FOUND.expand(2, 3)), torch.stack([0.3 * whole, 0.9 * part]))


def fitted(**options: Any) -> tuple[FairRFModule, dict[str, float], Any]:
    torch.manual_seed(0)
    module = FairRFModule(5, RELATED, backbone=Linear, eta=0.7, lr=0.05)
    callbacks = [PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.3, **options)]
    trainer = quiet_trainer(max_epochs=3, callbacks=callbacks)
    trainer.fit(module, PeopleData())
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}, trainer


@pytest.mark.parametrize("rule", ["kkt", "worst_case"])
def test_the_objective_of_a_fit_has_the_beta_and_the_rule_of_its_callback(rule: Rule) -> None:
    _, logged, _ = fitted(every_n_steps=5, rule=rule)
    found = torch.tensor([logged["penalty/age"], logged["penalty/job"]])
    expected = logged["val_loss"] + 0.7 * float(lambda_cost(found, 0.3, rule))
    assert logged["val_objective"] == pytest.approx(expected, rel=1e-5)
    assert logged["val_objective"] != pytest.approx(logged["val_loss"] + logged["val_penalty"], rel=1e-3)


def test_the_objective_of_a_fit_with_a_fixed_lambda_is_the_sum() -> None:
    _, logged, _ = fitted(every_n_steps=None)
    assert logged["val_objective"] == pytest.approx(logged["val_loss"] + logged["val_penalty"], rel=1e-6)


def test_a_checkpoint_is_tested_with_the_objective_that_chose_it(tmp_path: Path) -> None:
    _, logged, trainer = fitted(every_n_steps=5, rule="worst_case")
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    loaded = FairRFModule.load_from_checkpoint(tmp_path / "kept.ckpt", backbone=Linear)
    (tested,) = quiet_trainer().test(loaded, PeopleData(), verbose=False)
    assert tested["test_objective"] == pytest.approx(logged["val_objective"], rel=1e-5)


def small_data(**options: Any) -> SyntheticDataModule:
    return SyntheticDataModule(n_rows=300, batch_size=64, **options)


@pytest.mark.parametrize(("epochs", "kept"), [(4, [0, 2]), (2, [0, 0])])
def test_no_epoch_of_pretraining_is_kept_in_a_stack_once_there_is_another(
    epochs: int, kept: list[int]
) -> None:
    """Each epoch is made to look worse than the one before; a vanilla model has no pretraining."""
    settings = [Setting(eta=eta, dropout=0.0, every_n_steps=2) for eta in (0.0, 5.0)]
    schedule = Schedule(epochs=epochs, pretrain_epochs=2)
    stack = Stack(small_data, settings, seeds=[0], schedule=schedule)
    measure = stack.module.on_validation_epoch_end

    def rising() -> None:
        measure()
        stack.module.results["objective"] = torch.full((1, 2), float(stack.module.current_epoch))

    stack.module.on_validation_epoch_end = rising  # type: ignore[method-assign]
    stack.fit()
    assert stack.best.best_epoch[0].tolist() == kept


def test_nothing_is_known_before_the_first_update() -> None:
    penalty = RelatedFeaturePenalty(RELATED)
    metrics = EvaluationMetrics(penalty)
    assert metrics.group_rates() == {}
    with pytest.warns(UserWarning, match="before the ``update``"):
        values, _ = metrics.compute()
    assert not any("gap" in name for name in values)
    rows = {"inputs": torch.randn(8, 5), "target": torch.tensor([0.0, 1.0] * 4)}
    groups = torch.tensor([0, 0, 1, 1] * 2)
    loss, logits = torch.tensor(0.5), torch.randn(8)
    metrics.update(loss, logits, rows["inputs"], rows["target"], groups)
    assert set(metrics.group_rates())
    metrics.reset()
    assert metrics.group_rates() == {}
