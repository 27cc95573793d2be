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

from fairrf_lightning.correction import Correction, CorrectionFit, Goal, check_goal
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.estimate import ACT_ABOVE, GapEstimate, ScoredRows, estimate_gaps, is_detected
from fairrf_lightning.functional import fit_logistic
from fairrf_lightning.load import EvaluatedRows, Run, evaluate, load_run
from fairrf_lightning.membership import Membership, find_membership
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.quiet import quiet_lightning
from fairrf_lightning.survey import Survey

NOTHING_CHANGED = "no gap detected: nothing was changed"
_MIN_GROWTH = 0.005  # of another gap; a smaller change is hardly visible in the table


@dataclass(frozen=True)
class Measured:
    """Decisions on rows without S.

    Args:
        accuracy: Share of right decisions; NaN without labels.
        positive_share: Share of positive decisions.
        gaps: Estimates by :func:`~fairrf_lightning.estimate.estimate_gaps`; empty without a survey, because
            published statistics see only a part of a gap.
    """

    accuracy: float
    positive_share: float
    gaps: Mapping[str, GapEstimate]


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
        max_accuracy_loss: The accuracy budget.
        act_above: The smallest gap that is acted on.
        source: The knowledge about S.
        num_rows: Number of test rows.
        run: The run.
    """

    goal: Goal
    correction: Correction | None = field(repr=False)
    before: Measured
    after: Measured | None
    detected: GapEstimate | None
    max_accuracy_loss: float
    act_above: float
    source: str
    num_rows: int
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
        lines: dict[str, list[str]] = {
            "accuracy": [f"{one.accuracy:.4f}" for one in columns.values()],
            "share of positive decisions": [f"{one.positive_share:.4f}" for one in columns.values()],
        }
        for key in self.before.gaps:
            lines[f"{GAPS[key].label}, estimated (95 %)"] = [str(one.gaps[key]) for one in columns.values()]
        return pd.DataFrame(
            [[name, *cells] for name, cells in lines.items()], columns=["test rows", *columns]
        )

    def statements(self) -> Iterator[str]:
        """Yield what was done and which constraint stopped it, one sentence each."""
        label = self.goal.definition.label
        if self.outcome is None:
            limit = f"max(1.64 standard errors, {self.act_above:g})"
            yield f"{NOTHING_CHANGED} ({label} {self.detected}, expected more than {limit})"
            return
        name = self.goal.gap.removesuffix("_gap")
        reached = f"{name} = {self.outcome.gap_after:.2f}"
        reached += "" if self.before.gaps else f" in the part of it that {self.source} sees,"
        if self.outcome.stopped_by == "goal":
            yield f"reached the goal: {reached} by membership on {self.outcome.num_rows:,} validation rows"
        elif self.outcome.stopped_by == "budget":
            budget = f"{self.max_accuracy_loss:g}"
            yield f"stopped by the accuracy budget ({budget}) at {reached} by membership on validation rows"
        elif self.outcome.stopped_by == "collapse":
            yield f"stopped by the guard against collapse at {reached} by membership on validation rows"
        else:
            yield f"the rates are as equal as {self.source} can make them: {reached} on validation rows"

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each other gap that grows, and what is not known."""
        if self.after is None:
            return
        if not self.before.gaps:
            yield "published statistics see only a part of a gap: run `certify` for a bound, or survey people"
        for key, before in self.before.gaps.items():
            after = self.after.gaps[key]
            if key != self.goal.gap and after.value > before.value + _MIN_GROWTH:
                yield f"{GAPS[key].label} grows from {before} to {after}: the two gaps pull apart here"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "goal": asdict(self.goal),
            "source": self.source,
            "max_accuracy_loss": self.max_accuracy_loss,
            "act_above": self.act_above,
            "num_rows": self.num_rows,
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
        survey: People whose S is known, or a file of them.
        proxies: YAML file of S's share and its correlations with columns.
        column: Input column that holds ``P(S = 1 | x)``.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value of S that counts as S = 1.
        goal: ``"dp=0.10"``, ``"eo=0.05"``; without a number the smallest gap within the budget.
        max_accuracy_loss: Maximum loss of validation accuracy.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.
        trust: As in :func:`~fairrf_lightning.load.load_run`.
        data_options: As in :func:`~fairrf_lightning.load.load_run`.

    Raises:
        InputError: If the options contradict each other, or a file cannot be used.
    """
    wanted = Goal.parse(goal)
    if sum(part is not None for part in (survey, proxies, column)) != 1:
        raise InputError("give one of --survey, --proxies and --column: the knowledge about S.")
    run = source if isinstance(source, Run) else load_run(source, trust=trust, data_options=data_options)
    if run.module.correction is not None:
        raise InputError(
            f"{run.path}: it is corrected already; correct the checkpoint that it was made from."
        )
    if survey is not None and not isinstance(survey, Survey):
        survey = Survey.read(survey, run.data, sensitive=sensitive, group=group)
    membership = find_membership(run.data, survey=survey, proxies=proxies, column=column, group=group)
    with quiet_lightning():  # the table was described when the run was loaded
        val, test = (_prob_rows(evaluate(run, part)) for part in ("val", "test"))
    return replace(
        correct_rows(
            val,
            test,
            membership,
            survey,
            None if survey is None else _survey_probs(run, survey),
            goal=wanted,
            max_accuracy_loss=max_accuracy_loss,
            act_above=act_above,
        ),
        run=run,
    )


@dataclass(frozen=True)
class ProbRows:
    """Rows with the probabilities of a model, without S.

    Args:
        probabilities: Probabilities of the positive class ``(N,)``, float64.
        inputs: Encoded inputs ``(N, D)``.
        target: True classes ``(N,)``.
        rows: Row numbers in the table ``(N,)``; ``None`` if surveyed people may not be among them.
    """

    probabilities: Tensor
    inputs: Tensor
    target: Tensor
    rows: Tensor | None = None


def correct_rows(
    val: ProbRows,
    test: ProbRows,
    membership: Membership,
    survey: Survey | None = None,
    survey_probs: Tensor | None = None,
    *,
    goal: str | Goal | None = None,
    max_accuracy_loss: float = 0.005,
    act_above: float = ACT_ABOVE,
) -> CorrectionResult:
    """Choose a correction of any model's probabilities on rows without S, and measure it on others.

    Args:
        val: Rows on which the strength is chosen.
        test: Rows on which the result is measured.
        membership: Membership.
        survey: The survey, if membership is from one.
        survey_probs: The model's probabilities of the surveyed people.
        goal: As in :func:`correct`.
        max_accuracy_loss: As in :func:`correct`.
        act_above: As in :func:`correct`.
    """
    wanted = Goal.parse(goal)
    check_goal(wanted, membership, survey)
    people = None
    if survey is not None and survey_probs is not None:
        people = _People(survey, survey_probs, membership)
    detected = None if people is None else people.estimate(val, None)[wanted.gap]
    correction = None
    if detected is None or is_detected(detected, act_above):
        correction = Correction.fit(
            val.probabilities,
            membership,
            target=val.target,
            goal=wanted,
            max_accuracy_loss=max_accuracy_loss,
            inputs=val.inputs,
            rows=val.rows,
            survey=survey,
        )
    return CorrectionResult(
        goal=wanted,
        correction=correction,
        before=_measure(test, None, people),
        after=None if correction is None else _measure(test, correction, people),
        detected=detected,
        max_accuracy_loss=max_accuracy_loss,
        act_above=act_above,
        source=_source_name(survey, membership),
        num_rows=len(test.target),
    )


@torch.no_grad()
def linear_gap(
    data: TabularDataModule,
    survey: str | Path | Survey,
    *,
    sensitive: str | None = None,
    group: str | None = None,
    gap: str = "dp_gap",
) -> GapEstimate:
    """Estimate the gap that a logistic regression without a penalty has, before other models are trained.

    Args:
        data: The data, set up.
        survey: People whose S is known, or a file of them.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value of S that counts as S = 1.
        gap: Key of the gap in :data:`GAPS`.

    Raises:
        InputError: If the survey cannot be used, or has no labels and the gap needs them.
    """
    if not isinstance(survey, Survey):
        survey = Survey.read(survey, data, sensitive=sensitive, group=group)
    if not survey.can_estimate(GAPS[gap]):
        raise InputError(
            f"survey: without labels, or with few people of a class and group, there is no {GAPS[gap].label}."
        )
    train, val = (_tensors(data, part) for part in ("train", "val"))
    weights = fit_logistic(train["inputs"], train["target"], 1.0)

    def decide(inputs: Tensor) -> Tensor:
        return inputs.double() @ weights[:-1] + weights[-1] >= 0

    pool = ScoredRows(decide(val["inputs"]), val["inputs"], val["target"], val["row"])
    membership = Membership.from_survey(survey, data)
    return estimate_gaps(pool, survey, decide(survey.inputs), membership)[gap]


def _tensors(data: TabularDataModule, part: str) -> dict[str, Tensor]:
    batches = list(data.rows_of(part))
    return {key: torch.cat([batch[key] for batch in batches]) for key in ("inputs", "target", "row")}


@dataclass(frozen=True)
class _People:
    """Surveyed people with the model's probabilities."""

    survey: Survey
    probs: Tensor
    membership: Membership

    def estimate(self, rows: ProbRows, correction: Correction | None) -> dict[str, GapEstimate]:
        """Estimate the gaps of decisions on rows, with a correction or without."""
        decisions = self.probs >= 0.5
        if correction is not None:
            # The corrected decision of a person must not depend on the answer of that person.
            positive = torch.ones(len(self.survey)) if correction.goal.positives else None
            decisions = correction.decide(self.probs, self.membership.cross_fitted(self.survey, positive))
        pool = ScoredRows(_decisions(rows, correction), rows.inputs, rows.target, rows.rows)
        return estimate_gaps(pool, self.survey, decisions, self.membership)


def _prob_rows(rows: EvaluatedRows) -> ProbRows:
    return ProbRows(rows.probabilities, rows.inputs, rows.target, rows.rows)


@torch.no_grad()
def _survey_probs(run: Run, survey: Survey) -> Tensor:
    probs: Tensor = run.module.penalty.probabilities(run.module(survey.inputs))
    return probs.double()


@torch.no_grad()
def _decisions(rows: ProbRows, correction: Correction | None) -> Tensor:
    if correction is None:
        return rows.probabilities >= 0.5
    scores: Tensor = correction(rows.probabilities, rows.inputs)
    return scores >= 0.5


def _measure(rows: ProbRows, correction: Correction | None, people: _People | None) -> Measured:
    decisions = _decisions(rows, correction)
    return Measured(
        accuracy=float((decisions == (rows.target > 0.5)).double().mean()),
        positive_share=float(decisions.double().mean()),
        gaps={} if people is None else people.estimate(rows, correction),
    )


def _source_name(survey: Survey | None, membership: Membership) -> str:
    if survey is None:
        return {"correlations": "published statistics", "column": "a column of the table"}[membership.source]
    answers = f", answers randomised ({survey.randomized:g})" if survey.randomized else ""
    return f"a survey of {len(survey):,} people ({survey.name}: {', '.join(survey.group_names)}{answers})"
