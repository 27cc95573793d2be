"""The rule by which columns are proposed as related features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fairrf_lightning.datamodules.leakage import SUSPICIOUS_ASSOCIATION
from fairrf_lightning.suggest.association import Association

Verdict = Literal["take", "noise", "unclear", "weak", "costly", "stand-in"]


@dataclass(frozen=True)
class Proposal:
    """A column, its association with S and with the label, and whether to take it.

    Args:
        name: The column.
        sensitive: Its association with S.
        target: Its association with the label, if there is one.
        verdict: ``take``; ``noise``: its interval holds 0; ``unclear``: it does not, but chance alone gives
            such an interval too often among so many columns (Holm); ``weak``: beyond noise, but below the
            least association; ``costly``: far more associated with the label than with S; ``stand-in``:
            almost determines S, and belongs out of the inputs.
    """

    name: str
    sensitive: Association
    target: Association | None
    verdict: Verdict


def propose(
    sensitive: Mapping[str, Association],
    target: Mapping[str, Association],
    min_association: float = 0.1,
    max_ratio: float = 3.0,
) -> list[Proposal]:
    """Judge each column, the one that tells most of S first.

    Args:
        sensitive: Association of each column with S.
        target: The same with the label; may be empty.
        min_association: Least association with S of a column that is worth a penalty.
        max_ratio: Columns that tell so many times more of the label than of S are left out: a penalty on them
            costs much accuracy for little fairness.
    """
    ranked = sorted(sensitive, key=lambda name: -sensitive[name].value)
    return [
        Proposal(
            name,
            sensitive[name],
            target.get(name),
            _verdict(sensitive[name], target.get(name), min_association, max_ratio),
        )
        for name in ranked
    ]


def _verdict(
    sensitive: Association, target: Association | None, min_association: float, max_ratio: float
) -> Verdict:
    if sensitive.value > SUSPICIOUS_ASSOCIATION:
        return "stand-in"
    if sensitive.p_value > 0.05:
        return "unclear" if sensitive.low > 0 else "noise"
    if sensitive.value < min_association:
        return "weak"
    if target is not None and target.value > max_ratio * sensitive.value:
        return "costly"
    return "take"
