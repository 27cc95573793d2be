"""Numbers and lists as they are written in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable

DASH = "\N{EN DASH}"


def percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.8523)
    '85.2 %'
    """
    return DASH if math.isnan(value) else f"{100 * value:.{digits}f} %"


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """Return a difference of shares in percentage points.

    >>> points(0.0154, signed=True)
    '+1.5 points'
    """
    return DASH if math.isnan(value) else f"{number_text(100 * value, digits, signed=signed)} points"


def listing(names: Iterable[str]) -> str:
    """Return names as part of a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def first_upper(text: str) -> str:
    """Return a sentence with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number_text(value: float, digits: int, *, signed: bool = False) -> str:
    """Return a number with a minus sign, and zero without a sign.

    >>> number_text(-0.004, 2)
    '0.00'
    """
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")  # no negative zero
    return text.replace("-", "\N{MINUS SIGN}")
