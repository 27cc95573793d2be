"""Search space and second objective of a sweep: options of models as YAML, and what to minimise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_origin, get_type_hints

import torch
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from torch import Tensor

from fairrf_lightning.backbones import MLP
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.choose import ACCURACY, BALANCED, SHARE
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stack import Stack
from fairrf_lightning.functional import Statistic
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import Given, RelatedFeaturePenalty

Distribution: TypeAlias = FloatDistribution | IntDistribution | CategoricalDistribution

FIXED = "fixed"  # a rule of a space: lambda is never updated
DEFAULT_SPACE: dict[str, Any] = {
    "eta": {"low": 0.05, "high": 2.0, "log": True},
    "beta": {"low": 0.2, "high": 2.0, "log": True},
    "rule": ["kkt", "worst_case", FIXED],
    "statistic": ["covariance", "correlation"],
    "pretrain_epochs": {"low": 0, "high": 3},  # less in short trainings
    "lr": {"low": 3e-4, "high": 3e-3, "log": True},
}
# Related features are the user's knowledge; ARL has no penalty to search for.
_NOT_SEARCHED = {"related", "remove", "expose_sensitive", "method", "epochs"}
_NOT_SEARCHED |= {"adversary_lr", "pretrain_steps"}
_OF_SCHEDULE = [option.name for option in fields(Schedule)]
_OF_STACK = {option.name for option in fields(StackConfig)} | set(_OF_SCHEDULE)
# Names and types of the options that can be searched.
_TYPES = get_type_hints(Setting) | get_type_hints(Schedule)
PARAMETERS: dict[str, Any] = {
    name: int if _TYPES[name] == int | None else _TYPES[name]
    for name in (*SETTING_COLUMNS, *_OF_SCHEDULE)
    if name not in _NOT_SEARCHED
}


@dataclass(frozen=True)
class Space:
    """A search space: what is searched, and what has the same value in all trials."""

    distributions: dict[str, Distribution]
    fixed: dict[str, Any] = field(default_factory=dict)

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """Return the setting of a trial's parameters."""
        return Setting(**{k: v for k, v in self._values(params).items() if k not in _OF_SCHEDULE})

    def schedule(self, params: Mapping[str, Any], epochs: int) -> Schedule:
        """Return the schedule of a trial's parameters."""
        return Schedule(epochs, **{k: v for k, v in self._values(params).items() if k in _OF_SCHEDULE})

    def structure(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that trials must share to train as one stack: all except eta and beta."""
        return {k: v for k, v in params.items() if k in _OF_STACK}

    def with_default(self, name: str, value: Any) -> Space:
        """Return the space with another default of a parameter; a value that the space names stays."""
        if name in self.distributions or name in self.fixed or value == getattr(Setting, name):
            return self
        return replace(self, fixed=self.fixed | {name: value})

    def describe(self) -> dict[str, str]:
        """Return each parameter as text, to compare the space with another one."""
        everything = {**self.distributions, **self.fixed}
        return {name: str(everything[name]) for name in sorted(everything)}

    @property
    def max_pretrain_epochs(self) -> int:
        """The largest number of epochs without the penalty that a trial may have."""
        searched = self.distributions.get("pretrain_epochs")
        if isinstance(searched, IntDistribution):
            return searched.high
        if isinstance(searched, CategoricalDistribution):
            return max(int(str(choice)) for choice in searched.choices)
        fixed: int = self.fixed.get("pretrain_epochs", Schedule.pretrain_epochs)
        return fixed

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        values = self.fixed | dict(params)
        if isinstance(values.get("hidden"), str):  # Optuna stores no lists
            values["hidden"] = tuple(int(size) for size in values["hidden"].split("x") if size)
        if values.get("rule") == FIXED:
            values |= {"rule": Setting.rule, "every_n_steps": None}
        return values


def read_space(path: str | Path | None = None, epochs: int = Schedule.epochs) -> Space:
    """Return the space of a YAML file; ``None`` for the default.

    A mapping ``{low, high, log}`` is a range, a list is a choice, and a plain value is fixed.

    Raises:
        InputError: If the file is invalid, or if pretraining may take all epochs.
    """
    if path is None:
        pretraining = {"low": 0, "high": min(DEFAULT_SPACE["pretrain_epochs"]["high"], epochs - 1)}
        return parse_space(DEFAULT_SPACE | {"pretrain_epochs": pretraining}, "the default space")
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--space {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"--space {path} is not valid YAML: {' '.join(str(error).split())}") from error
    space = parse_space(given, str(path))
    if space.max_pretrain_epochs >= epochs:
        raise InputError(
            f"--space {path}: pretrain_epochs may be {space.max_pretrain_epochs}, and --epochs is {epochs}: "
            "no epoch would be left for the penalty. Lower the one or raise the other."
        )
    return space


def parse_space(given: Any, name: str) -> Space:
    """Return the space that a mapping of parameters describes.

    >>> space = parse_space({"eta": {"low": 0, "high": 1}, "lr": 0.01}, "mine")
    >>> space.distributions, space.fixed
    ({'eta': FloatDistribution(high=1.0, log=False, low=0.0, step=None)}, {'lr': 0.01})
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{name}: expected parameters, such as 'eta: {{low: 0.1, high: 2}}'.")
    parsed: dict[str, Any] = {}
    for key, entry in given.items():
        if key not in PARAMETERS:
            raise InputError(f"{name}: there is no parameter '{key}'; {did_you_mean(str(key), PARAMETERS)}")
        try:
            parsed[key] = _parse_entry(key, entry)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {key}: {error}") from error
    searched = {key: entry for key, entry in parsed.items() if isinstance(entry, Distribution)}
    if not searched:
        raise InputError(f"{name}: nothing to search: give a range {{low, high}} or a list of choices.")
    return Space(searched, {key: entry for key, entry in parsed.items() if key not in searched})


def _parse_entry(key: str, entry: Any) -> Distribution | Any:
    if isinstance(entry, Mapping):
        return _parse_range(key, entry)
    # A list of layer sizes is one value, a list of such lists is a choice.
    is_value = key == "hidden" and isinstance(entry, list) and all(isinstance(size, int) for size in entry)
    if not isinstance(entry, list) or is_value:
        return _parse_value(key, entry)
    choices = list(dict.fromkeys(_parse_value(key, choice) for choice in entry))
    if not choices:
        raise InputError("an empty list: expected choices.")
    return CategoricalDistribution(
        ["x".join(map(str, choice)) if isinstance(choice, tuple) else choice for choice in choices]
    )


def _parse_range(key: str, entry: Mapping[str, Any]) -> Distribution:
    if PARAMETERS[key] not in (int, float):
        raise InputError("has no range: expected a list of choices.")
    if not {"low", "high"} <= set(entry) <= {"low", "high", "log"}:
        raise InputError(f"{dict(entry)}: expected {{low: ..., high: ...}}, and optionally log: true.")
    low, high = (_parse_value(key, entry[end]) for end in ("low", "high"))
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"log: {log!r}: expected true or false.")
    return (IntDistribution if PARAMETERS[key] is int else FloatDistribution)(low, high, log=log)


def _parse_value(key: str, value: Any) -> Any:
    """Return a value of the parameter's type, after the class that will use it has checked it."""
    kind = PARAMETERS[key]
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or not all(isinstance(size, int) for size in value):
            raise InputError(f"{value!r}: expected sizes of layers, such as [64, 32].")
        value = tuple(value)
    elif get_origin(kind) is not Literal:
        # YAML reads 1e-4, without a point, as text.
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InputError(f"{value!r}: expected a number.")
        value = kind(value)
    if key in ("hidden", "dropout"):
        MLP(1, **{key: value})
    space = Space({}, {key: value})
    space.setting({}), space.schedule({}, Schedule.epochs)
    return value


S_FREE: dict[str, tuple[Statistic, Given]] = {
    "val_covariance": ("covariance", "all"),
    "val_correlation": ("correlation", "all"),
    "val_covariance_positives": ("covariance", "positives"),
    "val_correlation_positives": ("correlation", "positives"),
}
WITH_S = tuple(f"val_{key}" for key in GAPS)
_CONSENT = "with_s:"


@dataclass(frozen=True)
class Objective:
    """The second objective of a sweep; the first is validation accuracy.

    The S-free ones are the mean of the related features' ``R`` on the validation rows. Statistic and rows
    are the same for all trials, whatever their penalty, so that trials can be compared.

    Args:
        name: Name of the measure, such as ``"val_covariance"`` or ``"val_dp_gap"``.

    >>> Objective.parse("with_s:val_dp_gap").uses_sensitive
    True
    """

    name: str = "val_covariance"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return the objective of ``--objective``; a gap needs the prefix ``with_s:``."""
        name = text.removeprefix(_CONSENT)
        if name not in (*S_FREE, *WITH_S):
            choices = [*S_FREE, *(_CONSENT + gap for gap in WITH_S)]
            raise InputError(f"--objective {text}: no such objective; {did_you_mean(text, choices)}")
        if (name in WITH_S) != text.startswith(_CONSENT):
            looks = "looks at S on the validation rows; if you may, say so by"
            advice = looks if name in WITH_S else "does not look at S; write"
            right = f"{_CONSENT}{name}" if name in WITH_S else name
            raise InputError(f"--objective {text}: {name} {advice} --objective {right}")
        return cls(name)

    @property
    def uses_sensitive(self) -> bool:
        """Whether S of the validation rows is used."""
        return self.name in WITH_S

    def check(self, data: TabularDataModule) -> None:
        """Raise if the data lack what is measured, or expose S without consent."""
        if self.uses_sensitive and data.sensitive is None:
            raise InputError(
                f"--objective with_s:{self.name}: the data do not say which group a row belongs to; "
                f"name the column of S, or take an S-free objective: {', '.join(S_FREE)}."
            )
        if data.expose_sensitive and not self.uses_sensitive:
            raise InputError(
                f"expose_sensitive shows S to the penalty, and {self.name} would measure it: "
                f"take one of {', '.join(_CONSENT + gap for gap in WITH_S)}."
            )

    def measure(self, stack: Stack) -> dict[str, Tensor]:
        """Return accuracy, this measure and those of eligibility of a stack's models, ``(S, P)`` each."""
        values = stack.evaluate(["val"])
        if not self.uses_sensitive:
            values[self.name] = self._mean_penalty(stack)
        # Gaps that were not asked for are not kept.
        return {name: values[name] for name in (ACCURACY, self.name, BALANCED, SHARE)}

    @torch.no_grad()
    def _mean_penalty(self, stack: Stack) -> Tensor:
        module, own = stack.module.eval(), stack.module.penalty
        common = RelatedFeaturePenalty(own.related, own.eta, *S_FREE[self.name]).to(module.device)
        metric = FeaturePenalties(common).to(module.device)
        for rows in stack.data.val_dataloader():
            batch = {name: value.to(module.device) for name, value in rows.items()}
            inputs, target, _ = module.unpack(batch)
            metric.update(own.probabilities(module(inputs)), module.related_of(batch, inputs), target)
        penalties: Tensor = metric.compute()
        return penalties.view_as(own.weights).mean(-1)
