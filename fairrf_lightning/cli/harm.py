"""Leaves a model alone if a survey shows no gap."""

from __future__ import annotations

from fairrf_lightning.cli.tables import print_lines
from fairrf_lightning.correct import NOTHING_CHANGED
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.penalty_columns import is_survey
from fairrf_lightning.estimate import is_detected, linear_gap
from fairrf_lightning.metrics.counts import GAPS


def is_worth_training(data: TabularDataModule, act_above: float, gap: str = "dp_gap") -> bool:
    """Return whether the survey that the penalty uses shows a gap, and print a line if it does not.

    Without a survey nothing is known about the gap, and the answer is yes.

    Args:
        data: The data, with the option ``membership``.
        act_above: Smallest gap to act on.
        gap: Key of the gap.
    """
    if data.membership is None or not is_survey(data.membership):
        return True
    found = linear_gap(data, data.membership, gap=gap)
    if is_detected(found, act_above):
        return True
    print_lines(
        f"{NOTHING_CHANGED[:1].upper()}{NOTHING_CHANGED[1:]}.",
        f"A logistic regression without a penalty has an estimated {GAPS[gap].label} of {found} on the "
        f"validation rows; expected more than max(1.64 standard errors, {act_above:g}).",
        "A larger survey narrows the interval; `fit` trains a single model all the same.",
    )
    return False
