"""Two fairness libraries on proxy labels: fairret in stacked training, fairlearn with logistic regression.

Both see S as the survey's model predicts it on the training rows, which is how they would be used today
with a survey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from fairlearn.reductions import DemographicParity, ExponentiatedGradient
from fairret.loss import NormLoss
from fairret.statistic import PositiveRate
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.prior_knowledge_methods import (
    FRONT_BUDGETS,
    Case,
    Knowledge,
    Part,
    Result,
    candidate,
    corrected,
    of_run,
    result,
)
from fairrf_lightning.experiments import Schedule, Setting, Stack, StackedModule
from fairrf_lightning.experiments.choose import choose
from fairrf_lightning.experiments.stack import MakeData

LIMITS = (0.8, 0.6, 0.4, 0.2)  # of the gap of the unconstrained model, by proxy labels
_MAX_ITERATIONS = 20


class FairretModule(StackedModule):
    """A stack whose penalty is fairret's norm loss on the positive rates of the proxy groups."""

    def training_step(self, batch: Any) -> Tensor:
        inputs, target, _ = self.unpack(batch)
        logits = self(inputs)
        loss = self.task_loss(logits, target)
        if not self.penalty.enabled:
            return loss.sum()
        column = int(self.penalty.columns[0])
        weights = torch.as_tensor(self.penalty.eta)
        penalties = [
            weight * _norm_loss(model, member[0, :, column])
            for weight_row, models, member in zip(weights, logits, batch["related"], strict=True)
            for weight, model in zip(weight_row, models, strict=True)
        ]
        return loss.sum() + torch.stack(penalties).sum()


def _norm_loss(logits: Tensor, proxy: Tensor) -> Tensor:
    groups = torch.stack([1 - proxy, proxy], -1)
    loss: Tensor = NormLoss(PositiveRate())(logits.unsqueeze(-1), groups)
    return loss


class FairretStack(Stack):
    """A stack that trains with fairret's loss in place of the penalty."""

    def fit(self, *args: Any, **options: Any) -> None:
        """Train all models."""
        own = self.module
        self.module = FairretModule(own.backbone, own.penalty, own.hparams["num_groups"], self.schedule.lr)
        super().fit(*args, **options)


def train_fairret(
    make_data: MakeData, settings: Sequence[Setting], seeds: Sequence[int], schedule: Schedule
) -> list[Result]:
    """Train with fairret's loss and return the metrics of the last epoch, one row per model."""
    stack = FairretStack(make_data, settings, seeds, schedule)
    stack.fit(select=False)
    values = stack.evaluate()
    return [
        setting.as_row(stack.data.parts[0])
        | {"seed": seed, "method_steps": 1}
        | {name: float(value[s, p]) for name, value in values.items()}
        for p, setting in enumerate(stack.settings)
        for s, seed in enumerate(stack.seeds)
    ]


def logistic_results(case: Case, known: Knowledge, proxy: Tensor) -> Iterator[Result]:
    """Yield the results of ExponentiatedGradient and of the correction, both of logistic regression.

    Args:
        case: The seed.
        known: Membership by the survey, for demographic parity.
        proxy: S of the training rows as the survey's model predicts it.
    """
    train = Part.of(case.data, "train")
    inputs, target = train.inputs.numpy(), train.target.numpy().astype(int)
    plain = _estimator().fit(inputs, target)
    scores = {name: _probs(plain, part) for name, part in {"val": case.val, "test": case.test}.items()}
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
        fair = ExponentiatedGradient(
            _estimator(),
            DemographicParity(difference_bound=share * gap),
            eps=share * gap,
            max_iter=_MAX_ITERATIONS,
        )
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


def _expected(model: ExponentiatedGradient, part: Part) -> Tensor:
    """Return the probability of a positive decision: the classifier is randomised."""
    return torch.from_numpy(model._pmf_predict(part.inputs.numpy())[:, 1])  # noqa: SLF001 - has no public name


def _candidate(case: Case, strength: float, decide: Callable[[Part], Tensor]) -> Result:
    val, test = (part.measure(decide(part)) for part in (case.val, case.test))
    return candidate("eg" if strength else "logistic", strength, val, test, case.data)
