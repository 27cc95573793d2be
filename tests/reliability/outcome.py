"""Runs the command line in this process: a result, a clear error, or an exception that fails the test."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase

from fairrf_lightning.cli import main

SHORT = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
SHORT += ["--trainer.enable_model_summary=false"]
_MAX_LINES = 3
# Settings of hypothesis. Without shrinking: each try is a whole command.
WHOLE_COMMANDS: dict[str, Any] = {
    "deadline": None,
    "phases": (Phase.explicit, Phase.reuse, Phase.generate),
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


def outcome(arguments: list[str], folder: Path) -> str:
    """Return the text of a clear error, or an empty text if the command did its work.

    Any other exception is a foreign traceback to the user, and passes.
    """
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["train.py"])
        patch.setattr(sys, "path", list(sys.path))
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = _exit_code(arguments)
    if code == 0:
        return ""
    message = errors.getvalue().rpartition("error: ")[2].strip()
    assert code == 2, f"exit code {code}: {errors.getvalue()}"
    assert message, "an error without a message"
    assert len(message.splitlines()) <= _MAX_LINES, message
    assert "Traceback" not in message
    return message


def _exit_code(arguments: list[str]) -> int | str | None:
    try:
        main(arguments)
    except SystemExit as end:
        return end.code
    return 0
