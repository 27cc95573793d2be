"""A damaged state of the data is refused when it is loaded, not where it is used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError


def _lacks_a_column(encoder: dict[str, Any]) -> None:
    del encoder["scales"]["income"]


def _has_an_indicator(encoder: dict[str, Any]) -> None:
    encoder["indicators"] = ["income"]


@pytest.mark.parametrize("damage", [_lacks_a_column, _has_an_indicator])
def test_encoder_that_makes_other_inputs_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    data = SyntheticDataModule(n_rows=200, seed=0)
    data.setup("fit")
    state = copy.deepcopy(data.state_dict())
    damage(state["encoder"])
    with pytest.raises(InputError, match=r"its encoder makes \d input columns that are not the 6"):
        SyntheticDataModule(n_rows=200, seed=0).load_state_dict(state)


@pytest.mark.parametrize("damage", [{"columns": None}, {"related": [1]}, {"seed": "0"}, {"split": {}}])
def test_a_value_of_another_type_is_refused(damage: dict[str, Any]) -> None:
    data = SyntheticDataModule(n_rows=200, seed=0)
    data.setup("fit")
    with pytest.raises(InputError, match=f"data is damaged: {next(iter(damage))} = "):
        SyntheticDataModule(n_rows=200, seed=0).load_state_dict(data.state_dict() | damage)
