"""Models of the evidence for prior knowledge: trained as stacks, with metrics and scores kept on disk.

Metrics of all models go to ``<out>/<data>/<family>.csv``; the scores of the models that are corrected later
go to ``<out>/<data>/scores``. What is on disk is not trained again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairret.loss import NormLoss
from fairret.statistic import PositiveRate
from torch import Tensor

from benchmarks.prior_knowledge_methods import ALL_S, SOURCES, Part, memberships, survey_name
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.penalty_columns import PenaltyColumns
from fairrf_lightning.experiments import Schedule, Setting, Stack, StackedModule, run_settings
from fairrf_lightning.experiments.results import KEY, ResultsFile
from fairrf_lightning.experiments.stack import MakeData
from fairrf_lightning.files import replacing
from fairrf_lightning.presets import import_class, preset

PROXY, PROXY_SOURCE = "proxy labels", survey_name(400)
_MIN_SECONDS = 3.0  # of training; models that are on disk already take less
SEEDS_AT_ONCE = 5  # of a stack: finished ones are kept


@dataclass(frozen=True)
class Plan:
    """The grids of one data set.

    The strengths span validation losses from about 0.1 to 1.5 points on seeds 100 to 102; neither S nor
    test rows were used to choose them.

    """

    name: str  # of the preset of the data
    etas: tuple[float, ...]  # of FairRF
    signed_etas: tuple[float, ...]  # of the penalties on S itself or its estimate: ConstrainS, membership
    fairret: tuple[float, ...]  # strengths of fairret's loss
    adversary_lrs: tuple[float, ...] = (0.01, 0.1)
    default: tuple[float, float] = (0.3, 0.5)  # FairRF's recommended eta and beta, or those without one
    epochs: int = 20  # an epoch of COMPAS is only 6 steps

    def make_data(self) -> Callable[..., TabularDataModule]:
        """Return a function that creates the data module of a seed."""
        found = preset("datamodules", self.name)
        return partial(import_class(found["class_path"]), **found["init_args"])

    def settings(self, family: str) -> list[Setting]:
        """Return the settings of a family: ``"names"``, ``"arl"``, ``"signed"`` or ``"fairret"``."""
        data = self.make_data()(seed=0)
        data.prepare_data()
        make = partial(Setting, beta=self.default[1], every_n_steps=data.update_interval)
        if family == "arl":
            return [make(eta=0.0, adversary_lr=lr, method="arl") for lr in self.adversary_lrs]
        if family == "signed":
            return [
                make(eta=eta, related=(source,), method="constrain_s" if source == ALL_S else "membership")
                for source in (*SOURCES, ALL_S)
                for eta in self.signed_etas
            ]
        if family == "fairret":
            fairret = partial(make, related=(PROXY,), every_n_steps=None, method="fairret")
            return [fairret(eta=weight) for weight in self.fairret]
        etas = sorted({*self.etas, self.default[0]})
        removed = make(eta=0.0, remove=tuple(data.related), method="remove_r")
        return [make(eta=0.0, method="vanilla"), removed, *(make(eta=eta) for eta in etas)]


PLANS = {
    plan.name: plan
    for plan in (
        Plan(
            "adult",
            etas=(0.15, 0.3, 0.45, 0.6, 0.8),
            signed_etas=(0.8, 1.2, 1.6, 2.0),
            fairret=(0.02, 0.05, 0.075, 0.1),
            default=(0.6, 0.5),
        ),
        Plan(
            "law_bar",
            etas=(0.2, 0.3, 0.4, 0.5, 0.7),
            signed_etas=(0.4, 0.6, 0.8, 1.1),
            fairret=(0.01, 0.02, 0.03, 0.05),
        ),
        Plan(
            "dutch",
            etas=(0.3, 0.6, 0.9, 1.2, 1.6),
            signed_etas=(0.8, 1.3, 1.8, 2.4),
            fairret=(0.03, 0.06, 0.1, 0.14),
        ),
        Plan(
            "compas",
            etas=(0.05, 0.1, 0.2, 0.3, 0.6),
            signed_etas=(1.5, 3.0, 6.0, 12.0),
            fairret=(0.02, 0.04, 0.07, 0.1),
            default=(0.6, 0.8),
            epochs=60,
        ),
        Plan("lsac", etas=(0.3, 1.0, 2.0), signed_etas=(3.0, 10.0), fairret=(0.1, 0.3), default=(0.3, 1.0)),
    )
}


def make_shown(make_data: MakeData, sources: Sequence[str], seed: int) -> TabularDataModule:
    """Return data whose penalty sees membership by each source, S itself and proxy labels of S.

    The model does not see these columns.
    """
    data = make_data(seed=seed)
    known = memberships(data, sources)
    proxy = known.get(PROXY_SOURCE) or memberships(data, [PROXY_SOURCE])[PROXY_SOURCE]
    names = [*sources, ALL_S, PROXY]
    for name, tensors in data._parts.items():  # noqa: SLF001 - an experiment, not an option of the package
        part = Part.of(data, name)
        columns = [known[source](part.inputs) for source in sources]
        columns += [(part.groups == 1).float(), (proxy(part.inputs) >= 0.5).float()]
        tensors["related"] = torch.stack(columns, -1)
    numbers = {name: [number] for number, name in enumerate(names)}
    data._penalty_columns = PenaltyColumns(torch.empty(0, len(names)), numbers)  # noqa: SLF001
    return data


def train(plan: Plan, family: str, seeds: Sequence[int], out: Path) -> None:
    """Train a family of settings with each seed, unless it is on disk."""
    make_data, settings = plan.make_data(), plan.settings(family)
    if family in ("signed", "fairret"):
        make_data = partial(make_shown, make_data, SOURCES if family == "signed" else ())
    path = out / plan.name / f"{family}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    for some in (seeds[first : first + SEEDS_AT_ONCE] for first in range(0, len(seeds), SEEDS_AT_ONCE)):
        start = time.process_time()
        if family == "fairret":
            _train_fairret(make_data, settings, some, Schedule(epochs=plan.epochs), path)
        else:
            keep = partial(_evaluate, folder=path.parent / "scores") if family == "names" else Stack.evaluate
            run_settings(
                make_data,
                settings,
                some,
                Schedule(epochs=plan.epochs),
                path=path,
                max_models=len(settings) * len(some),
                evaluate=keep,
            )
        seconds = time.process_time() - start
        if seconds > _MIN_SECONDS:
            models = len(settings) * len(some)
            record_cpu(out, data=plan.name, family=family, first_seed=some[0], models=models, seconds=seconds)


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


def _train_fairret(
    make_data: MakeData, settings: Sequence[Setting], seeds: Sequence[int], schedule: Schedule, path: Path
) -> None:
    """Train with fairret's loss and keep the metrics of the last epoch."""
    results = ResultsFile(path)
    known = set() if results.frame.empty else set(results.frame["seed"])
    missing = [seed for seed in seeds if seed not in known]
    if not missing:
        return
    stack = Stack(make_data, settings, missing, schedule)
    own = stack.module
    stack.module = FairretModule(own.backbone, own.penalty, own.hparams["num_groups"], schedule.lr)
    stack.fit(select=False)
    values = stack.evaluate()
    results.add(
        [
            setting.as_row(stack.data.parts[0])
            | {"seed": seed, "method_steps": 1}
            | {name: float(value[s, p]) for name, value in values.items()}
            | {KEY: f"{setting.eta:g} {seed}"}
            for p, setting in enumerate(stack.settings)
            for s, seed in enumerate(stack.seeds)
        ]
    )


def _evaluate(stack: Stack, folder: Path) -> dict[str, Tensor]:
    """Return the metrics of a stack and keep its scores on validation and test rows."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"val": stack.data.val_dataloader, "test": stack.data.test_dataloader}
    found = {part: _scores(stack, loader()) for part, loader in parts.items()}
    for s, seed in enumerate(stack.seeds):
        for p, setting in enumerate(stack.settings):
            with replacing(score_path(folder, setting.method, setting.eta, seed)) as path:
                torch.save({part: scores[s, p].clone() for part, scores in found.items()}, path)
    return stack.evaluate()


@torch.no_grad()
def _scores(stack: Stack, batches: Iterable[dict[str, Tensor]]) -> Tensor:
    module = stack.module.eval()
    return torch.cat([module.penalty.probabilities(module(batch["inputs"])) for batch in batches], -1)


def score_path(folder: Path, method: str, eta: float, seed: int) -> Path:
    """Return the file with the scores of a model."""
    return folder / f"{method}_{eta:g}_{seed}.pt"


def record_cpu(out: Path, **row: str | float) -> None:
    """Append the CPU time of a step: data, family, first seed, number of models and seconds."""
    path = out / "cpu.csv"
    line = ",".join(map(str, row.values()))
    with path.open("a", encoding="utf-8") as file:  # one write: several processes may append
        file.write(line + "\n" if path.stat().st_size else f"{','.join(row)}\n{line}\n")
