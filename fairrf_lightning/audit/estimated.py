"""Gaps of a model on rows without S, estimated with a survey."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.estimate import GapEstimate, ScoredRows, estimate_gaps
from fairrf_lightning.load import Run, evaluate
from fairrf_lightning.membership import Membership
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.survey import Survey


@dataclass(frozen=True)
class EstimatedGaps:
    """Estimated gaps, with what is known without S.

    Args:
        gaps: Estimate of each gap, by its key; without labels in the survey only that of dDP.
        accuracy: Accuracy on the rows.
        positive_share: Share of positive decisions on the rows.
        num_rows: Number of rows without S.
        people: Number of surveyed people.
        group_names: Groups that are compared.
        randomized: Probability that an answer was replaced by chance.
        level: Confidence level of the intervals.
    """

    gaps: Mapping[str, GapEstimate]
    accuracy: float
    positive_share: float
    num_rows: int
    people: int
    group_names: tuple[str, ...]
    randomized: float
    level: float

    def table(self) -> pd.DataFrame:
        """Return the gaps with their intervals."""
        return pd.DataFrame(
            [
                [GAPS[key].label, f"{one.value:.4f}", f"{one.low:.3f} to {one.high:.3f}"]
                for key, one in self.gaps.items()
            ],
            columns=["gap", "estimate", f"{100 * self.level:g} % interval"],
        )

    def _repr_html_(self) -> str:
        html: str = self.table().to_html(index=False)
        return html

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self) | {"gaps": {key: asdict(one) for key, one in self.gaps.items()}}


@torch.no_grad()
def audit_by_survey(
    run: Run,
    survey: str | Path | Survey,
    *,
    sensitive: str | None = None,
    group: str | None = None,
    split: str = "test",
    level: float = 0.95,
) -> EstimatedGaps:
    """Estimate the gaps of a model on rows without S.

    Args:
        run: The run, which may be corrected.
        survey: People whose S is known, or a file of them.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value that means S = 1.
        split: Rows to estimate the gaps on.
        level: Confidence level of the intervals.

    Raises:
        InputError: If the survey cannot be used.
    """
    if not isinstance(survey, Survey):
        survey = Survey.read(survey, run.data, sensitive=sensitive, group=group)
    membership = Membership.from_survey(survey, run.data)
    rows = evaluate(run, split)
    pool = ScoredRows(rows.probabilities, rows.inputs, rows.target, rows.rows)
    gaps = estimate_gaps(pool, survey, _survey_scores(run, survey) >= 0.5, membership, level=level)
    return EstimatedGaps(
        gaps=gaps,
        accuracy=float((pool.decisions == (rows.target > 0.5)).double().mean()),
        positive_share=float(pool.decisions.double().mean()),
        num_rows=len(rows.rows),
        people=len(survey),
        group_names=survey.group_names,
        randomized=survey.randomized,
        level=level,
    )


def _survey_scores(run: Run, survey: Survey) -> Tensor:
    probs = run.module.penalty.probabilities(run.module.backbone(survey.inputs))
    correction = run.module.correction
    return probs if correction is None else correction.survey_scores(probs, survey)
