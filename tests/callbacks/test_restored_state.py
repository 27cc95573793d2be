"""States of checkpoints of another kind of run, and the defaults that a checkpoint does not carry."""

from __future__ import annotations

import torch

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback


def made(weights: dict[str, float] | None = None) -> RelatedFeaturePenalty:
    return RelatedFeaturePenalty({"age": [0], "job": [1]}, initial_weights=weights)


def test_the_default_eta_is_the_documented_one() -> None:
    assert made().eta == 0.3


def test_a_module_that_holds_its_penalty_ignores_the_state_of_an_attached_one() -> None:
    attached = LambdaUpdateCallback(penalty=made({"age": 0.9, "job": 0.1}), module="net").state_dict()
    callback = LambdaUpdateCallback()
    callback.load_state_dict(attached | {"steps_since_update": 7})
    assert callback.state_dict()["steps_since_update"] == 7


def test_an_attached_penalty_keeps_its_lambda_if_the_checkpoint_has_no_other() -> None:
    penalty = made({"age": 0.9, "job": 0.1})
    callback = LambdaUpdateCallback(penalty=penalty, module="net")
    callback.load_state_dict(LambdaUpdateCallback().state_dict())
    torch.testing.assert_close(penalty.weights, torch.tensor([0.9, 0.1]))
