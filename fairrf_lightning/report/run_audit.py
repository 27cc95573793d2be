"""Audits a run's best checkpoint, alone or against that of another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fairrf_lightning.audit import audit, score_checkpoint
from fairrf_lightning.audit.checkpoint import evaluate_checkpoint
from fairrf_lightning.cli.errors import explain
from fairrf_lightning.errors import DivergedError, InputError
from fairrf_lightning.load import EvaluatedRows, RunFolder
from fairrf_lightning.quiet import quiet_lightning
from fairrf_lightning.report.facts import Absent


def audit_run(
    run: RunFolder, against: RunFolder | None = None, groups: Sequence[str] = ()
) -> dict[str, Any] | Absent:
    """Return the audit of the best checkpoint on its test rows, or why there is none.

    Args:
        run: The run.
        against: Another run on the same rows; that it cannot be compared is an error.
        groups: Sensitive columns; by default S of the data. Data without S have no groupings.

    Raises:
        DivergedError: If the model predicts numbers that are not finite.
    """
    try:
        rows = _evaluate(run, groups)
    except DivergedError:  # there is nothing to report
        raise
    except (InputError, MisconfigurationException, ArgumentError, OSError, ValueError) as error:
        if against is not None or groups:
            raise
        return Absent(f"The checkpoint could not be audited again: {explain(error)}")
    other = None if against is None else _evaluate(against, groups)
    return audit(score_checkpoint(rows, other)).to_dict()


def _evaluate(run: RunFolder, groups: Sequence[str]) -> EvaluatedRows:
    checkpoint = run.best_checkpoint
    if checkpoint is None:
        raise InputError(f"{run.path}: the run has kept no checkpoint.")
    with quiet_lightning():
        options = ["--config", str(run.path / "config.yaml"), "--ckpt_path", str(checkpoint)]
        return evaluate_checkpoint(options, attributes=groups)
