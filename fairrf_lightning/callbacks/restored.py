"""Reads values from the state of a callback in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fairrf_lightning.errors import InputError

T = TypeVar("T", int, float, bool)


def restored(state: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a value of a callback's state.

    Args:
        state: State of the callback in a checkpoint.
        name: Key of the value.
        kind: Its type; a ``bool`` is not taken for an ``int``.

    Raises:
        InputError: If the value is missing or of another type.
    """
    value = state.get(name)
    if type(value) is not kind:
        raise InputError(
            f"the checkpoint's state of a callback is damaged: {name} = {value!r}, expected "
            f"{kind.__name__}. Restore it from a copy, or train again."
        )
    return value
