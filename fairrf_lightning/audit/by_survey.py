"""Gaps of a model on rows without S, estimated with a survey."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fairrf_lightning.estimate import Measured, ScoredRows, estimate_gaps
from fairrf_lightning.load import Run, Split, evaluate, load_run
from fairrf_lightning.membership import Membership
from fairrf_lightning.messages import level_text
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.survey import Survey


@dataclass(frozen=True, repr=False)
class EstimatedGaps(Measured):
    """Gaps on rows without S, estimated with a survey, and numbers that need no S.

    Args:
        num_rows: Number of rows without S.
        people: Number of surveyed people.
        group_names: Groups that are compared.
        randomized: Probability that an answer was replaced by chance.
        level: Confidence level of the intervals.
    """

    num_rows: int
    people: int
    group_names: tuple[str, ...]
    randomized: float
    level: float

    def table(self) -> pd.DataFrame:
        """Return the gaps with their intervals."""
        lines = [
            [GAPS[key].label, f"{one.value:.4f}", f"{one.low:.3f} to {one.high:.3f}"]
            for key, one in self.gaps.items()
        ]
        return pd.DataFrame(lines, columns=["gap", "estimate", f"{level_text(self.level)} interval"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        """Show the gaps."""
        return f"Gaps on {self.num_rows:,} rows without S\n{self.table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return str(self.table().to_html(index=False))


@torch.no_grad()
def audit_by_survey(
    source: str | Path | Run,
    survey: str | Path | Survey,
    *,
    sensitive: str | None = None,
    group: str | None = None,
    split: Split = "test",
    level: float = 0.95,
) -> EstimatedGaps:
    """Estimate the gaps of a model on rows without S.

    Args:
        source: A checkpoint, the folder of a run, or a run that was loaded, which may be corrected.
        survey: People whose S is known, or a file of them.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value that means S = 1.
        split: Rows to estimate the gaps on.
        level: Confidence level of the intervals.

    Raises:
        InputError: If the survey cannot be used.
    """
    run = source if isinstance(source, Run) else load_run(source)
    if not isinstance(survey, Survey):
        survey = Survey.read(survey, run.data, sensitive=sensitive, group=group)
    rows, correction = evaluate(run, split), run.module.correction
    scores = run.module.penalty.probabilities(run.module.backbone(survey.inputs))
    if correction is not None:
        scores = correction.survey_scores(scores, survey)
    pool = ScoredRows(rows.probabilities, rows.inputs, rows.target, rows.rows)
    membership = Membership.from_survey(survey, run.data)
    measured = pool.measured(estimate_gaps(pool, survey, scores >= 0.5, membership, level=level))
    return EstimatedGaps(
        **vars(measured),
        num_rows=len(rows.rows),
        people=len(survey),
        group_names=survey.group_names,
        randomized=survey.randomized,
        level=level,
    )
