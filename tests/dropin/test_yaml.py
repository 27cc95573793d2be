"""The attached penalty can be configured from YAML and the command line."""

from __future__ import annotations

from typing import Any

import pytest
from jsonargparse import ArgumentParser
from torch import Tensor

from fairrf_lightning.callbacks import LambdaUpdateCallback


def ages(batch: dict[str, Tensor]) -> Tensor:
    return batch["age"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("metadata", "metadata"), ("2", 2), ("tests.dropin.test_yaml.ages", ages), ("null", None)],
)
def test_where_the_related_columns_are(given: str, expected: Any) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(LambdaUpdateCallback, "callback")
    penalty = (
        "{class_path: fairrf_lightning.RelatedFeaturePenalty, init_args: {related: {age: [0]}, eta: 0.5}}"
    )
    config = parser.parse_args([f"--callback.penalty={penalty}", f"--callback.inputs={given}"])
    callback = parser.instantiate_classes(config).callback
    assert callback.penalty.eta == 0.5
    assert callback.penalty.feature_names == ["age"]
    assert callback._attachment.rows.inputs == expected
