"""The search space of a sweep, as YAML, and the settings that trials draw from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_origin, get_type_hints

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fairrf_lightning.backbones import MLP
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, Schedule, Setting, StackConfig

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
