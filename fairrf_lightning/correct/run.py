"""Corrects a finished run towards a fairness goal, with a survey or published statistics in place of S."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.correction import Correction, CorrectionFit, Goal, fit_if_detected
from fairrf_lightning.errors import InputError
from fairrf_lightning.estimate import (
    ACT_ABOVE,
    NOTHING_CHANGED,
    GapEstimate,
    Measured,
    ScoredRows,
    detection_rule,
    estimate_gaps,
)
from fairrf_lightning.load import Run, evaluate, load_run
from fairrf_lightning.membership import Membership, find_membership
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.survey import Survey

_MIN_GROWTH = 0.005  # of another gap; a smaller change is hardly visible in the table


@dataclass(frozen=True)
class CorrectionResult:
    """A correction, with what is known about the decisions before and after it.

    Args:
        goal: The goal.
        correction: The correction; ``None`` if no gap was detected.
        before: The uncorrected decisions on the test rows, which had no part in any choice.
        after: The corrected ones; ``None`` if nothing was changed.
        detected: The gap of the goal as estimated on the validation rows, which decided whether to act;
            ``None`` without a survey.
        source: The knowledge about S.
        test: The test rows, with uncorrected probabilities.
        run: The run, if one was corrected.
    """

    goal: Goal
    correction: Correction | None = field(repr=False)
    before: Measured
    after: Measured | None
    detected: GapEstimate | None
    source: str
    test: ScoredRows = field(repr=False)
    run: Run | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"CorrectionResult({'; '.join(self.statements())})"

    def _repr_html_(self) -> str:
        table: str = self.table().to_html(index=False)
        return table + "".join(f"<p>{escape(line)}</p>" for line in (*self.statements(), *self.warnings()))

    @property
    def outcome(self) -> CorrectionFit | None:
        """Choice of the strength on the validation rows."""
        return None if self.correction is None else self.correction.outcome

    def table(self) -> pd.DataFrame:
        """Return accuracy, share of positive decisions and estimated gaps before and after."""
        columns = {"before": self.before} | ({} if self.after is None else {"after": self.after})
        cells = {
            name: {
                "accuracy": f"{one.accuracy:.4f}",
                "share of positive decisions": f"{one.positive_share:.4f}",
                **{f"{GAPS[key].label}, estimated (95 %)": str(gap) for key, gap in one.gaps.items()},
            }
            for name, one in columns.items()
        }
        return pd.DataFrame(cells).rename_axis("test rows").reset_index()

    def statements(self) -> Iterator[str]:
        """Yield what was done and which constraint stopped it, one sentence each."""
        label = self.goal.definition.label
        if self.outcome is None:
            yield f"{NOTHING_CHANGED} ({label} {self.detected}, {detection_rule(self.goal.act_above)})"
            return
        stopped = {
            "goal": "reached the goal:",
            "budget": f"stopped by the accuracy budget ({self.goal.max_accuracy_loss:g}) at",
            "collapse": "stopped by the guard against collapse at",
            "end": f"the rates are as equal as {self.source} can make them:",
        }[self.outcome.stopped_by]
        reached = f"{self.outcome.gap_after:.3f} (before: {self.outcome.gap_before:.3f})"
        part = "" if self.before.gaps else ", the visible part of the gap,"
        yield (
            f"{stopped} {label} {reached}{part} by membership, on {self.outcome.num_rows:,} validation rows"
        )

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each other gap that grows, and what is not known."""
        if self.after is None:
            return
        loss = self.before.accuracy - self.after.accuracy
        if loss > self.goal.max_accuracy_loss and self.outcome is not None:
            rows = f"{self.outcome.num_rows:,} validation rows"
            yield (
                f"accuracy falls by {loss:.4f} on the test rows, more than the budget, which held on {rows}; "
                "with few rows the two differ by chance"
            )
        if not self.before.gaps:
            yield f"{self.source}: only a part of a gap may be visible; survey people to estimate the whole"
        for key, before in self.before.gaps.items():
            after = self.after.gaps[key]
            if key != self.goal.gap and after.value > before.value + _MIN_GROWTH:
                yield f"{GAPS[key].label} grows from {before} to {after}: the two gaps pull apart here"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "goal": asdict(self.goal),
            "source": self.source,
            "num_rows": len(self.test.inputs),
            "before": asdict(self.before),
            "after": None if self.after is None else asdict(self.after),
            "detected": None if self.detected is None else asdict(self.detected),
            "outcome": None if self.outcome is None else asdict(self.outcome),
            "statements": list(self.statements()),
            "warnings": list(self.warnings()),
        }

    def checkpoint(self) -> dict[str, Any]:
        """Return the content of the corrected checkpoint: that of the run, with the correction.

        It holds fitted coefficients, never an answer of the survey.

        Raises:
            InputError: If nothing was changed, or scores were corrected rather than a run.
        """
        if self.run is None or self.correction is None:
            raise InputError(f"there is no corrected checkpoint: {next(self.statements())}.")
        added = {f"correction.{name}": value for name, value in self.correction.state_dict().items()}
        return {**self.run.checkpoint, "state_dict": {**self.run.checkpoint["state_dict"], **added}}


def correct(
    source: str | Path | Run,
    *,
    survey: str | Path | Survey | None = None,
    proxies: str | Path | None = None,
    column: str | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    goal: str | Goal | None = None,
    max_accuracy_loss: float = 0.005,
    act_above: float = ACT_ABOVE,
    trust: Collection[str] = (),
    data_options: Mapping[str, Any] | None = None,
) -> CorrectionResult:
    """Correct the decisions of a finished run towards a fairness goal, without S in the data.

    Give one of ``survey``, ``proxies`` and ``column``. The strength is chosen on the validation rows, without
    S; accuracy and gaps are then measured on the test rows.

    Args:
        source: A checkpoint, the folder of a run, or a run that was loaded.
        survey: People whose S is known: a form of survey draw, or a table with the input columns.
        proxies: YAML file of S's share and its correlations with columns.
        column: Input column that holds the probability of S = 1.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value that means S = 1; all others are compared with it.
        goal: Such as dp=0.10 or eo=0.05; dp or eo alone is the smallest gap within the budget. Default: dp.
        max_accuracy_loss: Accuracy that may be lost on the validation rows.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.
        trust: As in :func:`~fairrf_lightning.load.load_run`.
        data_options: As in :func:`~fairrf_lightning.load.load_run`.

    Raises:
        InputError: If the options contradict each other, or a file cannot be used.
    """
    wanted = Goal.parse(goal, max_accuracy_loss, act_above)
    run = source if isinstance(source, Run) else load_run(source, trust=trust, data_options=data_options)
    if run.module.correction is not None:
        raise InputError(
            f"{run.path}: it is corrected already; correct the checkpoint that it was made from."
        )
    membership, people = find_membership(
        run.data, survey=survey, proxies=proxies, column=column, sensitive=sensitive, group=group
    )
    with quiet_lightning():  # the table was described when the run was loaded
        parts = [evaluate(run, part) for part in ("val", "test")]
    val, test = (ScoredRows(part.probabilities, part.inputs, part.target, part.rows) for part in parts)
    probs = None if people is None else run.predict(people.inputs)
    return replace(correct_rows(val, test, membership, people, probs, goal=wanted), run=run)


def correct_rows(
    val: ScoredRows,
    test: ScoredRows,
    membership: Membership,
    survey: Survey | None = None,
    survey_probs: Tensor | None = None,
    *,
    goal: Goal,
) -> CorrectionResult:
    """Choose a correction of any model's probabilities on rows without S, and measure it on others.

    The strength is chosen on ``val`` and the result measured on ``test``. ``survey_probs`` are the model's
    probabilities of the surveyed people.
    """
    correction, detected = fit_if_detected(val, membership, survey, survey_probs, goal=goal)

    @torch.no_grad()
    def measured(correction: Correction | None) -> Measured:
        rows, people = test, survey_probs
        if correction is not None:
            rows = replace(test, scores=correction(test.scores, test.inputs))
            people = None if survey is None or people is None else correction.survey_scores(people, survey)
        gaps = {}
        if survey is not None and people is not None:
            gaps = estimate_gaps(rows, survey, people >= 0.5, membership)
        return rows.measured(gaps)

    return CorrectionResult(
        goal=goal,
        correction=correction,
        before=measured(None),
        after=None if correction is None else measured(correction),
        detected=detected,
        source=_source_name(survey, membership),
        test=test,
    )


def _source_name(survey: Survey | None, membership: Membership) -> str:
    if survey is None:
        return {"correlations": "published statistics", "column": "a column of the table"}[membership.source]
    answers = f", answers randomised ({survey.randomized:g})" if survey.randomized else ""
    return f"a survey of {len(survey):,} people ({survey.name}: {', '.join(survey.group_names)}{answers})"
