"""Checks the state of a data module in a checkpoint before anything is restored from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.errors import InputError

_TYPES: dict[str, type | tuple[type, ...]] = {
    "columns": list,
    "encoder": Mapping,
    "expose_sensitive": bool,
    "feature_names": list,
    "include_sensitive": bool,
    "ksmote": (Mapping, type(None)),
    "related": list,
    "remove_related": bool,
    "seed": int,
    "sensitive": (str, type(None)),
    "split": list,
    "table_options": Mapping,
}
_NAMES = ("columns", "feature_names", "related")


def check_state(state: Mapping[str, Any]) -> None:
    """Raise :class:`InputError` if a state is damaged, or its encoder does not make the model's inputs.

    Args:
        state: The state of a data module in a checkpoint.
    """
    for name, kind in _TYPES.items():
        if not isinstance(state.get(name), kind):
            raise _damaged(f"{name} = {state.get(name)!r}")
    for name in _NAMES:
        if not all(isinstance(item, str) for item in state[name]):
            raise _damaged(f"{name} = {state[name]}")
    made = TableEncoder.from_state(state["encoder"]).columns
    if made != state["feature_names"]:
        trained = len(state["feature_names"])
        raise _damaged(f"its encoder makes {len(made)} input columns that are not the {trained} of the model")


def _damaged(what: str) -> InputError:
    return InputError(
        f"the checkpoint's state of the data is damaged: {what}. Restore it from a copy, or train again."
    )
