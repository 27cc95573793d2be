"""What a sweep varies: the default space, the user's own as YAML, and the settings drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fairrf_lightning.backbones import MLP
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.setting import Schedule, Setting

Distribution: TypeAlias = FloatDistribution | IntDistribution | CategoricalDistribution

FIXED = "fixed"  # among the rules of a space: lambda is never updated
DEFAULT_SPACE: dict[str, Any] = {
    "eta": {"low": 0.05, "high": 2.0, "log": True},
    "beta": {"low": 0.2, "high": 2.0, "log": True},
    "rule": ["kkt", "worst_case", FIXED],
    "statistic": ["covariance", "correlation"],
    "pretrain_epochs": {"low": 0, "high": 3},  # less in short trainings
    "lr": {"low": 3e-4, "high": 3e-3, "log": True},
}
_FLOATS = ("eta", "beta", "dropout", "lr")
_INTEGERS = ("pretrain_epochs", "every_n_steps")
_NAMES = ("rule", "statistic", "given", "backbone")
PARAMETERS = (*_FLOATS, *_INTEGERS, *_NAMES, "hidden")
# Models that differ in these only can be trained as one stack; the others are its structure.
WITHIN_A_STACK = ("eta", "beta")
_OF_SCHEDULE = {f.name for f in fields(Schedule)}


@dataclass(frozen=True)
class Space:
    """A search space.

    Args:
        distributions: What is searched.
        fixed: What has another value than its default throughout.
    """

    distributions: dict[str, Distribution]
    fixed: dict[str, Any] = field(default_factory=dict)

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """Return the setting of a trial's parameters."""
        values = self._values(params)
        return Setting(**{name: value for name, value in values.items() if name not in _OF_SCHEDULE})

    def schedule(self, params: Mapping[str, Any], epochs: int) -> Schedule:
        """Return the schedule of a trial's parameters."""
        values = self._values(params)
        return Schedule(epochs, **{name: value for name, value in values.items() if name in _OF_SCHEDULE})

    def with_default(self, name: str, value: Any) -> Space:
        """Return the space with another default of a parameter, which counts unless the space names it."""
        if name in self.distributions or name in self.fixed or value == getattr(Setting, name):
            return self
        return replace(self, fixed=self.fixed | {name: value})

    def structure(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that the trials of a stack have in common."""
        return {name: value for name, value in params.items() if name not in WITHIN_A_STACK}

    def describe(self) -> dict[str, str]:
        """Return the space as plain text by parameter, to compare it with another one."""
        everything = {**self.distributions, **self.fixed}
        return {name: str(everything[name]) for name in sorted(everything)}

    @property
    def longest_pretraining(self) -> int:
        """The most epochs without the penalty that a trial may have."""
        searched = self.distributions.get("pretrain_epochs")
        if isinstance(searched, IntDistribution):
            return searched.high
        if isinstance(searched, CategoricalDistribution):
            return max(int(str(choice)) for choice in searched.choices)
        fixed: int = self.fixed.get("pretrain_epochs", Schedule.pretrain_epochs)
        return fixed

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        values = self.fixed | dict(params)
        if isinstance(values.get("hidden"), str):
            values["hidden"] = decode_hidden(values["hidden"])
        if values.get("rule") == FIXED:
            values |= {"rule": Setting.rule, "every_n_steps": None}
        return values


def read_space(path: str | Path | None = None, epochs: int = Schedule.epochs) -> Space:
    """Return the space of a YAML file; ``None`` for the default. No pretraining may take all epochs.

    A mapping ``{low, high, log}`` is a range, a list is a choice, and a plain value is fixed.
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
    if space.longest_pretraining >= epochs:
        raise InputError(
            f"--space {path}: pretrain_epochs may be {space.longest_pretraining}, and --epochs is {epochs}: "
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
    distributions: dict[str, Distribution] = {}
    fixed: dict[str, Any] = {}
    for key, entry in given.items():
        if key not in PARAMETERS:
            raise InputError(f"{name}: there is no parameter '{key}'; {did_you_mean(str(key), PARAMETERS)}")
        try:
            parsed = _parse_entry(key, entry)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {key}: {error}") from error
        if isinstance(parsed, Distribution):
            distributions[key] = parsed
        else:
            fixed[key] = parsed
    if not distributions:
        raise InputError(f"{name}: nothing to search: give a range {{low, high}} or a list of choices.")
    return Space(distributions, fixed)


def _encode(choice: Any) -> Any:
    return "x".join(map(str, choice)) if isinstance(choice, tuple) else choice


def decode_hidden(text: str) -> tuple[int, ...]:
    """Return layer sizes that were written as text, the only kind of list that Optuna can store.

    >>> decode_hidden("64x32")
    (64, 32)
    """
    return tuple(int(size) for size in text.split("x") if size)


def _parse_entry(key: str, entry: Any) -> Distribution | Any:
    if isinstance(entry, Mapping):
        return _parse_range(key, entry)
    # Of layers, a list of sizes is one value, and a list of lists is a choice.
    is_value = key == "hidden" and isinstance(entry, list) and all(isinstance(size, int) for size in entry)
    if isinstance(entry, list) and not is_value:
        choices = list(dict.fromkeys(_parse_value(key, choice) for choice in entry))
        if not choices:
            raise InputError("an empty list: expected choices.")
        return CategoricalDistribution([_encode(choice) for choice in choices])
    return _parse_value(key, entry)


def _parse_range(key: str, entry: Mapping[str, Any]) -> Distribution:
    if key not in (*_FLOATS, *_INTEGERS):
        raise InputError("has no range: expected a list of choices.")
    if not {"low", "high"} <= set(entry) <= {"low", "high", "log"}:
        raise InputError(f"{dict(entry)}: expected {{low: ..., high: ...}}, and log: true if you like.")
    low, high = (_parse_value(key, entry[end]) for end in ("low", "high"))
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"log: {log!r}: expected true or false.")
    return (IntDistribution if key in _INTEGERS else FloatDistribution)(low, high, log=log)


def _parse_value(key: str, value: Any) -> Any:
    if key == "hidden":
        if not isinstance(value, list) or not all(isinstance(size, int) for size in value):
            raise InputError(f"{value!r}: expected sizes of layers, such as [64, 32].")
        parsed: Any = tuple(value)
    elif key in _NAMES:
        parsed = value
    else:
        # YAML reads 1e-4, without a point, as text.
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InputError(f"{value!r}: expected a number.")
        parsed = float(value) if key in _FLOATS else int(value)
    _check_value(key, parsed)
    return parsed


def _check_value(key: str, value: Any) -> None:
    """Let those who will use the value look at it now, not in the middle of the sweep."""
    if key in ("hidden", "dropout"):
        MLP(1, **{key: value})
    elif key in _OF_SCHEDULE:
        Schedule(**{key: value})
    else:
        Space({}, {key: value}).setting({})
