"""Whether W&B can be used online: decided in seconds, without a prompt."""

from __future__ import annotations

import os
from contextlib import suppress

_REACH_SECONDS = 3.0
_NOT_ONLINE = ("offline", "dryrun", "disabled")


def chosen_mode() -> str:
    """Return W&B's mode as the environment or W&B's own settings have it; ``"online"`` by default."""
    import wandb  # noqa: PLC0415 - an optional dependency

    return os.environ.get("WANDB_MODE") or wandb.setup().settings.mode


def obstacle() -> str | None:
    """Return in a few words why W&B cannot be used online now; ``None`` if it can."""
    import wandb  # noqa: PLC0415

    if (mode := chosen_mode()) in _NOT_ONLINE:
        return f"its mode is set to {mode}"
    try:
        # The client's own check: at once without a key or with a bad one, 10 s without a network.
        return None if wandb.login(prompt=False, verify=True) else "no API key is configured"
    except wandb.errors.Error as error:
        server = wandb.setup().settings.base_url
        if not _reachable(server):
            return f"{server} cannot be reached"
        return f"{server} does not take the API key ({first_line(error)})"


def _reachable(server: str) -> bool:
    import requests  # noqa: PLC0415 - comes with wandb

    with suppress(requests.RequestException):
        requests.get(server, timeout=_REACH_SECONDS)  # any answer will do
        return True
    return False


def first_line(error: Exception) -> str:
    """Return what an error of the client says, in one line."""
    return str(error).strip().partition("\n")[0]
