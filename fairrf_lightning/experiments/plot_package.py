"""Matplotlib is optional: commands that end with a figure ask for it before they train, not after."""

from __future__ import annotations

from importlib.util import find_spec

from fairrf_lightning.errors import InputError
from fairrf_lightning.printed_command import install_command


def check_matplotlib(otherwise: str = "") -> None:
    """Raise if figures cannot be drawn.

    Args:
        otherwise: How to do without figures, for the message.
    """
    if find_spec("matplotlib") is None:
        hint = f", or {otherwise}" if otherwise else ""
        raise InputError(f"figures need matplotlib: {install_command('plot')}{hint}")
