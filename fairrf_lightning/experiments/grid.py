"""A grid: eta x beta x seeds (or the adversaries of ARL), trained at once, with a recommended setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, check_at_least, check_choice
from fairrf_lightning.experiments.choose import (
    CONSTANT,
    MODELS,
    STEPS,
    Recommendation,
    choice_rule,
    pareto_front,
    recommend,
    rejection_lines,
    strength_option,
    summarise,
)
from fairrf_lightning.experiments.run import MAX_MODELS, run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting, setting_name
from fairrf_lightning.experiments.stack import MakeData
from fairrf_lightning.experiments.workers import Advance, default_num_workers
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.notices import NEVER_UPDATED

Method: TypeAlias = Literal["fairrf", "arl"]

DEFAULT_ETAS = (0.2, 0.4, 0.6, 0.8, 1.0)
DEFAULT_ADVERSARY_LRS = (0.01, 0.1, 1.0)
_COLUMNS = {"test_acc": "accuracy", **{f"test_{key}": GAPS[key].label for key in ("eo_gap", "dp_gap")}}


@dataclass(frozen=True)
class GridResult:
    """Results of a grid, with the recommended setting.

    Args:
        results: One row per model.
        max_accuracy_loss: Validation accuracy that the recommended setting may lose against eta 0.
    """

    results: pd.DataFrame
    max_accuracy_loss: float = 0.01

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means and standard deviations over seeds, one row per setting."""
        return summarise(self.results)

    @cached_property
    def recommendation(self) -> Recommendation:
        """The settings chosen without and with S, and the rejected ones."""
        return recommend(self.summary, self.max_accuracy_loss)

    @property
    def recommended(self) -> pd.Series:
        """The row of ``summary`` that is recommended; it was chosen without S."""
        return self.recommendation.without_s

    def front(self, gap: str = "eo_gap") -> pd.DataFrame:
        """Return the settings on the Pareto front of test accuracy and a gap, by increasing gap."""
        return self.summary.iloc[pareto_front(self.summary["test_acc"], self.summary[f"test_{gap}"])]

    def table(self) -> pd.DataFrame:
        """Return the table to print: test metrics of each setting, and the chosen ones."""
        known = {name: heading for name, heading in _COLUMNS.items() if name in self.summary}
        option = strength_option(self.summary)
        rows = []
        for index, row in self.summary.iterrows():
            beta = "" if row["eta"] == 0 else f"{row['beta']:g}"
            metrics = (_with_spread(row[name], row[f"{name}_std"]) for name in known)
            rows.append([f"{row[option]:g}", beta, *metrics, ", ".join(self._marks(index, row))])
        return pd.DataFrame(rows, columns=[option, "beta", *known.values(), ""])

    def _marks(self, index: object, row: pd.Series) -> Iterator[str]:
        if row[CONSTANT]:
            yield f"same decision in {row[CONSTANT]:g} of {row[MODELS]:g} models"
        chosen = {"without S": self.recommendation.without_s, "with S": self.recommendation.with_s}
        yield from (name for name, best in chosen.items() if best is not None and best.name == index)

    def lines(self) -> list[str]:
        """Return the recommendation in sentences."""
        chosen = self.recommendation
        rule = choice_rule(self.summary, self.max_accuracy_loss)
        lines = [f"Recommended without S: {setting_name(chosen.without_s)}, {rule}"]
        if weights := _lambda(chosen.without_s):
            lines.append(f"Its lambda: {weights}.")
        if chosen.vanilla is None:
            lines.append("There is no vanilla model (eta 0) among the results to compare it with.")
        lines += rejection_lines(chosen.rejected)
        lines += self._never_updated()
        if chosen.with_s is None:
            lines.append("Gaps are not reported: the data do not say which group a row belongs to.")
        else:
            name, rule = setting_name(chosen.with_s), "the smallest dEO + dDP within the same accuracy"
            lines.append(f"For comparison, with S on validation: {name}, {rule}.")
        return lines

    def _never_updated(self) -> Iterator[str]:
        """Yield the notice that the kept epochs of models ended before the first update of lambda."""
        weights = self.results.filter(regex="^lambda/").notna().sum(axis=1)
        penalised = self.results[(self.results["eta"] > 0) & (self.results[STEPS] > 0) & (weights > 1)]
        interval = pd.to_numeric(penalised["every_n_steps"], errors="coerce")  # NaN for "never"
        if count := int((penalised[STEPS] < interval).sum()):
            yield (
                f"{NEVER_UPDATED} in {count} of {len(penalised)} models with a penalty, up to the kept "
                "epoch: lower --every_n_steps, or train longer."
            )

    def __repr__(self) -> str:
        """Return table and recommendation as text."""
        return "\n".join([self.table().to_string(index=False), *self.lines()])

    def _repr_html_(self) -> str:
        return f"{self.table().to_html(index=False)}<p>{self.lines()[0]}</p>"


def grid(
    make_data: MakeData,
    *,
    method: Method = "fairrf",
    eta: Sequence[float] | None = None,
    beta: Sequence[float] | None = None,
    adversary_lr: Sequence[float] | None = None,
    seeds: int | Sequence[int] = 5,
    setting: Setting | None = None,
    schedule: Schedule | None = None,
    max_accuracy_loss: float = 0.01,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = MAX_MODELS,
    workers: int | None = None,
    backend: str = "loky",
) -> GridResult:
    """Train all combinations of eta, beta and seeds, and recommend a setting.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        method: ``"fairrf"`` varies eta and beta, ``"arl"`` the learning rate of the adversary.
        eta: Weights of the penalty; 0 is always added. By default 0.2,0.4,0.6,0.8,1.0.
        beta: Weights of ``|lambda|^2``; by default 0.5.
        adversary_lr: Learning rates of ARL's adversary; by default 0.01,0.1,1.
        seeds: Number of seeds, or the seeds; each determines a split and an initialisation.
        setting: Options that all models share; by default those of :class:`Setting`, with the data's
            interval between updates of lambda.
        schedule: Length and learning rate of training.
        max_accuracy_loss: Validation accuracy that the recommended setting may lose against eta 0.
        path: CSV file of the results; a later grid with the same file resumes from it.
        advance: Called with a number of model-epochs when they are done.
        max_models: Maximum number of models in a stack; smaller stacks occupy more workers.
        workers: Number of stacks trained in parallel, with one thread each. Results are identical for any
            number. By default all cores of a cluster, or as many of this machine as save time.
        backend: Backend of joblib: ``"loky"`` for this machine; ``"dask"``, ``"ray"`` or ``"spark"`` for a
            cluster.

    Raises:
        InputError: If an option is out of range, or has no effect on the method.
    """
    check_at_least(0, max_accuracy_loss=max_accuracy_loss)
    schedule = schedule or Schedule()
    data = make_data(seed=0)
    data.prepare_data()
    settings = grid_settings(data, method, eta=eta, beta=beta, adversary_lr=adversary_lr, setting=setting)
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if workers is None and backend == "loky":
        steps = len(settings) * len(seeds) * schedule.epochs * len(data.train_dataloader())
        workers = default_num_workers(steps)
    results = run_settings(
        make_data,
        settings,
        seeds,
        schedule,
        path=path,
        advance=advance,
        max_models=max_models,
        workers=workers,
        backend=backend,
    )
    return GridResult(results, max_accuracy_loss)


def grid_settings(
    data: TabularDataModule,
    method: Method = "fairrf",
    *,
    eta: Sequence[float] | None = None,
    beta: Sequence[float] | None = None,
    adversary_lr: Sequence[float] | None = None,
    setting: Setting | None = None,
) -> list[Setting]:
    """Return the settings of a grid; the first one is vanilla. Arguments are those of :func:`grid`."""
    check_choice("method", method, get_args(Method))
    is_arl = method == "arl"
    for name, values in ({"eta": eta, "beta": beta} if is_arl else {"adversary_lr": adversary_lr}).items():
        if values is not None:
            text = ",".join(f"{value:g}" for value in values)
            raise InputError(f"--{name} {text}: it has no effect on {method}; leave it out.")
    if setting is None:
        data.prepare_data()
        setting = Setting(every_n_steps=data.update_interval)
    betas = list(dict.fromkeys(beta or (Setting.beta,)))
    # Without a penalty beta has no effect: one vanilla model per seed is enough.
    vanilla = replace(setting, eta=0.0, beta=betas[0], adversary_lr=0.0, method=_method_name(data))
    if is_arl:
        rates = dict.fromkeys(DEFAULT_ADVERSARY_LRS if adversary_lr is None else adversary_lr)
        return [vanilla, *(replace(vanilla, adversary_lr=lr, method="arl") for lr in rates if lr)]
    pairs = product(dict.fromkeys(DEFAULT_ETAS if eta is None else eta), betas)
    return [vanilla, *(replace(vanilla, eta=weight, beta=beta) for weight, beta in pairs if weight)]


def _method_name(data: TabularDataModule) -> str:
    """Return the name of the method that the options of the data stand for."""
    changed = {"ksmote": data.ksmote, "remove_r": data.remove_related, "constrain_s": data.expose_sensitive}
    return next((name for name, option in changed.items() if option), "fairrf")


def _with_spread(mean: float, spread: float) -> str:
    return f"{mean:.4f}" + ("" if math.isnan(spread) else f" ± {spread:.4f}")


def _lambda(row: pd.Series) -> str:
    names = [str(name) for name in row.index if str(name).startswith("lambda/")]
    weights = {name.removeprefix("lambda/"): row[name] for name in names if not name.endswith("_std")}
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items() if not math.isnan(weight))
