"""Facts of a run's best checkpoint, from its predictions on the test rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fairrf_lightning.audit.checkpoint import EvaluatedRows, evaluate_checkpoint
from fairrf_lightning.cli_errors import explain
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from fairrf_lightning.metrics.intervals import wilson_interval
from fairrf_lightning.metrics.rate_gap import RateGap
from fairrf_lightning.report.facts import Absent, Estimate, Gap, GroupRates
from fairrf_lightning.report.run_folder import RunFolder

_GAPS: dict[str, Callable[..., RateGap]] = {
    "dEO": EqualOpportunityGap,
    "dDP": DemographicParityGap,
    "dEOdds": EqualizedOddsGap,
}
_MODES: tuple[Literal["hard", "prob"], ...] = ("hard", "prob")


def evaluate(run: RunFolder) -> EvaluatedRows | Absent:
    """Return the best checkpoint's predictions on its test rows, or why there are none."""
    checkpoint = run.best_checkpoint
    if checkpoint is None:
        return Absent("The run has kept no checkpoint, so its groups cannot be looked at.")
    options = ["--config", str(run.path / "config.yaml"), "--ckpt_path", str(checkpoint)]
    try:
        with _quietly():
            return evaluate_checkpoint(options)
    except (InputError, MisconfigurationException, ArgumentError, OSError, ValueError) as error:
        return Absent(f"The checkpoint could not be looked at again: {explain(error)}")


def accuracy_of(rows: EvaluatedRows) -> Estimate:
    """Return the share of right decisions, of all rows."""
    return _rate((rows.probabilities >= 0.5) == (rows.target == 1))


def gaps_of(rows: EvaluatedRows) -> list[Gap]:
    """Return the gaps of decisions, then those of probabilities."""
    scope, count = str(rows.data.sensitive), len(rows.group_names)
    found = []
    for mode in _MODES:
        for name, make_metric in _GAPS.items():
            metric = make_metric(count, mode=mode)
            metric.update(rows.probabilities, rows.target, rows.groups)
            with warnings.catch_warnings():  # the page says that a gap is not estimable
                warnings.simplefilter("ignore")
                low, high = metric.interval()
                estimate = Estimate(float(metric.compute()), float(low), float(high))
            note = "" if estimate.is_known else "a group has no such rows"
            found.append(Gap(name, scope, estimate, mode, note=note))
    return found


def groups_of(rows: EvaluatedRows) -> list[GroupRates]:
    """Return selection, true and false positive rate and accuracy of each group, with Wilson intervals."""
    decided, positive = rows.probabilities >= 0.5, rows.target == 1
    found = []
    for group, name in enumerate(rows.group_names):
        member = rows.groups == group
        rates = {
            "selection rate": _rate(decided[member]),
            "true positive rate": _rate(decided[member & positive]),
            "false positive rate": _rate(decided[member & ~positive]),
            "accuracy": _rate((decided == positive)[member]),
        }
        found.append(GroupRates(str(rows.data.sensitive), name, int(member.sum()), rates))
    return found


def _rate(hits: torch.Tensor) -> Estimate:
    count = len(hits)
    if not count:
        return Estimate(float("nan"))
    low, high = wilson_interval(hits.sum(), count)
    return Estimate(float(hits.double().mean()), float(low), float(high))


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what Lightning says at its start to itself."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
