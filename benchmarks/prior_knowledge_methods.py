"""Methods of the evidence for prior knowledge: what each knows, and its test metrics within a budget.

Every method is tuned per seed by one rule: the strongest setting whose validation accuracy is within the
budget of the unconstrained model and that has not collapsed. S of validation rows is never used, except by
the upper limit that sees S at prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fairrf_lightning.correction import Correction
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.loader import TensorBatches
from fairrf_lightning.estimate import ScoredRows, estimate_gaps, is_detected
from fairrf_lightning.experiments import Setting
from fairrf_lightning.experiments.choose import eligible, most_accurate, preferred, summarise
from fairrf_lightning.functional import fit_logistic
from fairrf_lightning.membership import Membership
from fairrf_lightning.metrics.counts import GAPS, GroupCounts
from fairrf_lightning.metrics.decisions import decision_summary
from fairrf_lightning.survey import Survey
from paper.choose import choose

Result: TypeAlias = dict[str, Any]

ANY = float("inf")  # budget of methods without one
BUDGETS = (0.0025, 0.005, 0.01)  # of the tables
MAIN_BUDGET = 0.005
MATCHED_BUDGETS = (0.0005, 0.001, 0.0015, 0.002, *BUDGETS)  # compared with FairRF at the main budget
FRONT_BUDGETS = (*MATCHED_BUDGETS, 0.02)
SURVEYS = (100, 400, 2000)
CORRELATIONS, ALL_S, SEEN_S = "correlations", "all training S", "S at prediction"
GOAL, GOAL_BUDGET = "dp=0.10", 0.01
LIMITS = (0.8, 0.6, 0.4, 0.2)  # of the gap of the unconstrained logistic regression, by proxy labels
_MAX_ITERATIONS = 20


def survey_name(people: int) -> str:
    """Return the name of a survey as a source of knowledge."""
    return f"survey of {people:,}"


SOURCES = (CORRELATIONS, *map(survey_name, SURVEYS))
FRONT_SOURCES = (CORRELATIONS, survey_name(400), ALL_S, SEEN_S)


@dataclass(frozen=True)
class Part:
    """The rows of one part of the split."""

    inputs: Tensor
    target: Tensor
    groups: Tensor
    row: Tensor

    @classmethod
    def of(cls, data: TabularDataModule, name: str) -> Part:
        """Return the rows of ``train``, ``val`` or ``test``."""
        loader = data.rows_of(name)
        assert isinstance(loader, TensorBatches)  # noqa: S101 - all data sets are held in memory
        return cls(*(loader.tensors[key] for key in ("inputs", "target", "groups", "row")))

    def measure(self, decisions: Tensor) -> dict[str, float]:
        """Return accuracy, share of positives and gaps of decisions, or of their probabilities.

        Probabilities are those of a randomised classifier: the metrics are their expectations.
        """
        target = self.target.double()
        tp, fp = (decisions * target).sum(), (decisions * (1 - target)).sum()
        counts = GroupCounts.of(decisions, self.target, self.groups, num_groups=2)
        values = decision_summary(tp, fp, (1 - target).sum() - fp, target.sum() - tp)
        gaps = {key: counts.gap(gap, mode="prob") for key, gap in GAPS.items()}
        return {name: float(value) for name, value in (values | gaps).items()}


def draw(part: Part, people: int | None, seed: int) -> Tensor:
    """Return the places of randomly drawn rows whose group is compared; ``None`` draws all of them."""
    known = (part.groups >= 0).nonzero().squeeze(-1)
    return known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:people]]


def survey_at(data: TabularDataModule, part: Part, places: Tensor) -> Survey:
    """Return the answers of some rows."""
    return Survey(
        inputs=part.inputs[places],
        groups=part.groups[places],
        target=part.target[places],
        rows=part.row[places],
        group_names=tuple(data.group_names),
        name=str(data.sensitive),
    )


def published(data: TabularDataModule) -> tuple[float, dict[str, float]]:
    """Return the share of S = 1 and its correlations with the related columns, over the whole table."""
    parts = [Part.of(data, name) for name in ("train", "val", "test")]
    groups = torch.cat([part.groups for part in parts])
    columns = [column for name in data.related for column in data.encoder.owners[name]]
    inputs = torch.cat([part.inputs for part in parts])[groups >= 0][:, columns].double()
    groups = groups[groups >= 0].double()
    both = torch.cat([inputs, groups[:, None]], 1).T
    correlations = torch.corrcoef(both)[-1, :-1]
    names = [data.feature_names[column] for column in columns]
    known = zip(names, correlations.tolist(), strict=True)
    return float(groups.mean()), {name: rho for name, rho in known if not np.isnan(rho)}


def memberships(data: TabularDataModule, sources: Sequence[str]) -> dict[str, Membership]:
    """Return the estimate of each source of knowledge."""
    train = Part.of(data, "train")
    sizes = {survey_name(people): people for people in SURVEYS}
    found: dict[str, Membership] = {}
    for source in sources:
        if source == CORRELATIONS:
            found[source] = Membership.from_correlations(*published(data), data)
        elif source == ALL_S:
            found[source] = _from_everyone(survey_at(data, train, draw(train, None, 0)), data)
        else:
            places = draw(train, sizes[source], data.split_seed)
            found[source] = Membership.from_survey(survey_at(data, train, places), data)
    return found


def _from_everyone(survey: Survey, data: TabularDataModule) -> Membership:
    """Return membership from S of all training rows: one fit, as thousands of rows need no tuning."""
    assert survey.target is not None  # noqa: S101 - training rows have labels
    answers, labelled = survey.groups == 1, torch.cat([survey.inputs, survey.target[:, None]], -1)
    fits = [fit_logistic(inputs, answers, strength=1.0)[None, None] for inputs in (survey.inputs, labelled)]
    unknown = torch.full((2,), torch.nan)
    found = Membership(fits[0], unknown, "survey", survey.group_names, label_coefficients=fits[1])
    found.set_shares(data)
    return found


Scores: TypeAlias = Mapping[str, Tensor]  # of ``val`` and ``test`` rows


@dataclass(frozen=True)
class Runs:
    """The models that were trained with one seed."""

    frame: pd.DataFrame  # one row per model
    default_eta: float  # of FairRF

    @cached_property
    def settings(self) -> pd.DataFrame:
        """The metrics as the rule of choice reads them."""
        return summarise(self.frame)

    @property
    def vanilla(self) -> pd.Series:
        """The metrics of the vanilla model."""
        return self.settings[self.settings["method"] == "vanilla"].iloc[0]

    def chosen(self, method: str, related: str | None, budget: float) -> pd.Series:
        """Return the model that the rule chooses; the vanilla model if no other is eligible."""
        wanted = self.settings["method"] == method
        if related is not None:
            wanted &= self.settings["related"] == related
        candidates = self.settings[wanted | (self.settings["method"] == "vanilla")]
        best = preferred(eligible(candidates, self.vanilla, budget).settings, "without S")
        return self.vanilla if best is None else best


@dataclass(frozen=True)
class Case:
    """One seed of one data set: its rows, its trained models, and a function that returns their scores."""

    data: TabularDataModule
    val: Part
    test: Part
    runs: Runs
    scores: Callable[[pd.Series], Scores]


def result(method: str, knowledge: str, budget: float, aim: str = "dp", **values: Any) -> Result:
    """Return a row of results."""
    return {"method": method, "knowledge": knowledge, "aim": aim, "budget": budget, **values}


def of_run(run: pd.Series) -> Result:
    """Return strength and test metrics of a trained model, named as those of :meth:`Part.measure`."""
    names = ("acc", "positive_share", *GAPS)
    return {"strength": run["eta"], "val_acc": run["val_acc"]} | {key: run[f"test_{key}"] for key in names}


def trained_results(models: Runs) -> Iterator[Result]:
    """Yield the results of the methods that act in training."""
    runs = models.settings
    yield result("vanilla", "nothing", 0.0, "", **of_run(models.vanilla))
    default = runs[(runs["method"] == "fairrf") & (runs["eta"] == models.default_eta)]
    yield result("fairrf_default", "names", ANY, **of_run(default.iloc[0]))
    for method in ("remove_r", "arl"):
        if (runs["method"] == method).any():
            yield result(method, "names", ANY, "", **of_run(most_accurate(runs[runs["method"] == method])))
    for budget in FRONT_BUDGETS:
        yield result("fairrf", "names", budget, **of_run(models.chosen("fairrf", None, budget)))
        informed = runs[runs["method"].isin(["membership", "constrain_s", "fairret"])]
        for method, related in sorted(set(zip(informed["method"], informed["related"], strict=True))):
            knowledge = survey_name(400) if method == "fairret" else related
            yield result(method, knowledge, budget, **of_run(models.chosen(method, related, budget)))


@dataclass(frozen=True)
class Knowledge:
    """Membership on validation and test rows, for one goal."""

    source: str
    goal: str  # "dp" or "eo"
    val: Tensor
    test: Tensor


def knowledge_of(case: Case, sources: Sequence[str]) -> Iterator[Knowledge]:
    """Yield membership by each source and for each goal."""
    for source, estimate in memberships(case.data, sources).items():
        for goal in ("dp", "eo") if estimate.knows_labels else ("dp",):
            yield Knowledge(source, goal, *(_values(estimate, part, goal) for part in (case.val, case.test)))


def _values(estimate: Membership, part: Part, goal: str) -> Tensor:
    values: Tensor = estimate(part.inputs, torch.ones(len(part.inputs)) if goal == "eo" else None)
    return values


def corrected(case: Case, scores: Scores, known: Knowledge, goal: str, budget: float) -> Result:
    """Return the test metrics of corrected scores, tuned on validation rows without S."""
    found = Correction.fit(
        scores["val"], known.val, target=case.val.target, goal=goal, max_accuracy_loss=max(budget, 0.0)
    )
    outcome = found.outcome
    assert outcome is not None  # noqa: S101 - fit sets it
    values = case.test.measure(found.decide(scores["test"], known.test).float())
    kept = {key: values[key] for key in ("acc", "positive_share", *GAPS)}
    return {"strength": float(found.multipliers.abs().max()), "val_acc": outcome.accuracy_after, **kept}


def correction_results(case: Case) -> Iterator[Result]:
    """Yield the results of corrections of the vanilla model and of FairRF."""
    vanilla = case.scores(case.runs.vanilla)
    # S itself as membership: one threshold per group. Rows of groups that are not compared count as S = 0.
    member = [(part.groups == 1).float() for part in (case.val, case.test)]
    seen = [Knowledge(SEEN_S, goal, *member) for goal in ("dp", "eo")]
    for known in [*knowledge_of(case, (*SOURCES, ALL_S)), *seen]:
        in_front = known.source in FRONT_SOURCES and (known.goal == "dp" or known.source == survey_name(400))
        for budget in FRONT_BUDGETS if in_front else BUDGETS:
            values = corrected(case, vanilla, known, known.goal, budget)
            yield result("correction", known.source, budget, known.goal, **values)
        if known.goal == "dp" and known.source in (CORRELATIONS, survey_name(400)):
            yield result("goal", known.source, ANY, **corrected(case, vanilla, known, GOAL, GOAL_BUDGET))
            yield _after_fairrf(case, known, MAIN_BUDGET)
    yield from act_results(case, (vanilla["val"] >= 0.5).long())


def _after_fairrf(case: Case, known: Knowledge, budget: float) -> Result:
    """Return a correction of FairRF within half of the budget; the correction spends the rest."""
    model = case.runs.chosen("fairrf", None, budget / 2)
    rest = budget - float(case.runs.vanilla["val_acc"] - model["val_acc"])
    values = corrected(case, case.scores(model), known, "dp", rest)
    return result("fairrf_correction", known.source, budget, **values)


def act_results(case: Case, decisions: Tensor) -> Iterator[Result]:
    """Yield whether surveys find a gap of decisions on validation rows that is large enough to act on."""
    for people in (100, 400):
        places = draw(case.val, people, case.data.split_seed)
        survey = survey_at(case.data, case.val, places)
        pool = ScoredRows(decisions, case.val.inputs, case.val.target, case.val.row)
        estimate = Membership.from_survey(survey, case.data)
        found = estimate_gaps(pool, survey, decisions[places], estimate)
        for aim, key in {"dp": "dp_gap", "eo": "eo_gap"}.items():
            # With too few positives of a group dEO is not estimated, and `correct` refuses the goal.
            acts = key in found and is_detected(found[key])
            yield result("act", survey_name(people), ANY, aim, strength=float(acts))


def logistic_results(case: Case, known: Knowledge, proxy: Tensor) -> Iterator[Result]:
    """Yield the results of ExponentiatedGradient and of the correction, both of logistic regression.

    ``known`` is membership by a survey, ``proxy`` S of the training rows as the survey's model predicts it.
    """
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient  # noqa: PLC0415 - slow, used once

    train = Part.of(case.data, "train")
    inputs, target = train.inputs.numpy(), train.target.numpy().astype(int)
    plain = _estimator().fit(inputs, target)
    scores = {"val": _probs(plain, case.val), "test": _probs(plain, case.test)}
    reference = _candidate(case, 0.0, lambda part: (_probs(plain, part) >= 0.5).float())
    yield result("logistic", "nothing", 0.0, "", **of_run(pd.Series(reference)))
    for budget in FRONT_BUDGETS:
        values = corrected(case, scores, known, "dp", budget)
        yield result("logistic_correction", known.source, budget, **values)
    decisions, groups = plain.predict(inputs), proxy.numpy()
    tried = [reference]
    # A survey's model may predict the same group for all: then there is no gap to limit.
    for share in LIMITS if 0 < groups.sum() < len(groups) else ():
        gap = abs(decisions[groups == 1].mean() - decisions[groups == 0].mean())
        limit = DemographicParity(difference_bound=share * gap)
        fair = ExponentiatedGradient(_estimator(), limit, eps=share * gap, max_iter=_MAX_ITERATIONS)
        fair.fit(inputs, target, sensitive_features=groups)
        tried.append(_candidate(case, 1 - share, partial(_expected, fair)))
    frame = pd.DataFrame(tried).assign(seed=case.data.split_seed)
    for budget in FRONT_BUDGETS:
        chosen = choose(frame, frame[frame["eta"] == 0], budget, "without S").iloc[0]
        yield result("eg", known.source, budget, **of_run(chosen))


def _estimator() -> LogisticRegression:
    return LogisticRegression(solver="newton-cholesky")


def _probs(model: LogisticRegression, part: Part) -> Tensor:
    return torch.from_numpy(model.predict_proba(part.inputs.numpy())[:, 1])


def _expected(model: Any, part: Part) -> Tensor:
    """Return the probability of a positive decision: the classifier is randomised."""
    return torch.from_numpy(model._pmf_predict(part.inputs.numpy())[:, 1])  # noqa: SLF001 - has no public name


def _candidate(case: Case, strength: float, decide: Callable[[Part], Tensor]) -> Result:
    """Return the row of a model trained elsewhere, as the rule of choice reads it."""
    row = Setting(eta=strength, method="eg" if strength else "logistic").as_row(case.data)
    row["method_steps"] = 1
    for stage, part in {"val": case.val, "test": case.test}.items():
        row |= {f"{stage}_{name}": value for name, value in part.measure(decide(part)).items()}
    return row
