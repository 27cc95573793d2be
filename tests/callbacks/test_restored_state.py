"""States of checkpoints of another kind of run, and the defaults that a checkpoint does not carry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning import Callback

from fairrf_lightning import InputError, RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback


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


@pytest.mark.parametrize(
    ("callback", "damage"),
    [
        (LambdaUpdateCallback(), {"steps_since_update": ["a"]}),
        (PretrainCallback(patience=2), {"waited": "1"}),
        (PretrainCallback(patience=2), {"finished": 1}),
        (PretrainCallback(patience=2), {"best": None}),
    ],
)
def test_a_damaged_state_is_refused(callback: Callback, damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"callback is damaged: {next(iter(damage))}"):
        callback.load_state_dict(callback.state_dict() | damage)
