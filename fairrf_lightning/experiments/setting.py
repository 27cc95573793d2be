"""The options of a model: the one list that columns of results, identity and search space derive from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

import pandas as pd

from fairrf_lightning.backbones import BackboneName
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, check_at_least, check_choice
from fairrf_lightning.functional import Rule, Statistic, check_beta
from fairrf_lightning.penalty import Given

_CHOICES: dict[str, tuple[str, ...]] = {
    "backbone": get_args(BackboneName),
    "rule": get_args(Rule),
    "statistic": get_args(Statistic),
    "given": get_args(Given),
}
_FIXED = "never"  # in the column every_n_steps
# Methods that are the vanilla classifier at eta 0; others, such as KSMOTE, change the data.
_PLAIN_AT_ETA_0 = ("vanilla", "fairrf", "constrain_s")


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Options that all models of a stack share; settings that differ in one train as separate stacks.

    Args:
        backbone: The model.
        dropout: Dropout of the MLP.
        hidden: Sizes of the MLP's hidden layers.
        statistic: Association with the related features that is penalised.
        given: All rows, or the positives for equal opportunity.
        rule: How lambda is solved for.
        every_n_steps: Optimiser steps between updates of lambda; ``None`` keeps lambda fixed.
        expose_sensitive: Replace the related features by the sensitive attribute (ConstrainS). It is then
            in the training batches, for the penalty only, and still not an input of the model.
        pretrain_steps: Steps of ARL's learner without the adversary; ``None``: no adversaries.
    """

    backbone: BackboneName = "mlp"
    dropout: float = 0.1
    hidden: tuple[int, ...] = (64, 32)
    statistic: Statistic = "covariance"
    given: Given = "all"
    rule: Rule = "kkt"
    every_n_steps: int | None = 50
    expose_sensitive: bool = False
    pretrain_steps: int | None = 250


@dataclass(frozen=True, kw_only=True)
class Setting(StackConfig):
    """Options of a model; with data, a seed and a schedule they determine it.

    Args:
        eta: Weight of the penalty; 0 is the vanilla model.
        beta: Weight of ``|lambda|^2``.
        related: Related features; by default those of the data module.
        remove: Features that are not inputs of the model (RemoveR); they may still be related.
        adversary_lr: Learning rate of ARL's adversary, which weights the rows; 0 for no adversary.
        method: Name in reports.

    >>> Setting(eta=0.6).stack_config == Setting(eta=0.3).stack_config
    True
    """

    eta: float = 0.3
    beta: float = 0.5
    related: tuple[str, ...] | None = None
    remove: tuple[str, ...] = ()
    adversary_lr: float = 0.0
    method: str = "fairrf"

    def __post_init__(self) -> None:
        check_beta(self.beta)
        if not 0 <= self.eta < float("inf"):
            raise InputError(f"eta = {self.eta}: expected 0 (no penalty) or a positive number.")
        if self.every_n_steps is not None and self.every_n_steps < 1:
            raise InputError(f"every_n_steps = {self.every_n_steps}: expected 1 or more, or null for never.")
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        self._check_adversary()

    def _check_adversary(self) -> None:
        if not 0 <= self.adversary_lr < float("inf"):
            raise InputError(
                f"adversary_lr = {self.adversary_lr}: expected 0 (no adversary) or a positive number."
            )
        if self.pretrain_steps is None or self.pretrain_steps < 0:
            raise InputError(f"pretrain_steps = {self.pretrain_steps}: expected 0 or more steps.")
        if self.adversary_lr and (self.eta or self.remove or self.backbone == "svm"):
            raise InputError(
                f"adversary_lr = {self.adversary_lr}: ARL has no penalty (eta = 0), sees all inputs "
                "(nothing removed), and weights a cross entropy (no svm)."
            )

    @property
    def stack_config(self) -> StackConfig:
        """Options to share with other settings of a stack; those without effect have their default."""
        shared = {option.name: getattr(self, option.name) for option in fields(StackConfig)}
        if self.backbone != "mlp":
            del shared["dropout"], shared["hidden"]
        if not self.adversary_lr:
            shared["pretrain_steps"] = None
        if self.every_n_steps is None:
            del shared["rule"]
        return StackConfig(**shared)

    def related_in(self, data: TabularDataModule) -> tuple[str, ...]:
        """Return the related features on these data."""
        if (self.expose_sensitive or data.expose_sensitive) and data.sensitive is not None:
            return (data.sensitive,)
        if data.ksmote is not None:
            return ("cluster",)
        if data.membership is not None:
            return ("membership",)
        return tuple(data.related) if self.related is None else self.related

    def as_row(self, data: TabularDataModule) -> dict[str, Any]:
        """Return the options as columns of a row of results."""
        texts = {"related": "+".join(self.related_in(data)), "remove": "+".join(self.remove)}
        texts["hidden"] = "x".join(map(str, self.hidden))
        texts["every_n_steps"] = _FIXED if self.every_n_steps is None else str(self.every_n_steps)
        values = asdict(self) | texts
        return {name: values[name] for name in SETTING_COLUMNS}


# Columns of results that distinguish settings: those of a model first, then those of its stack.
_SHARED = {option.name for option in fields(StackConfig)}
SETTING_COLUMNS = sorted((option.name for option in fields(Setting)), key=lambda name: name in _SHARED)
FLOAT_COLUMNS = tuple(option.name for option in fields(Setting) if option.type == "float")
TEXT_COLUMNS = ("related", "remove", "hidden", "every_n_steps")


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of training, shared by all models of an experiment.

    Args:
        epochs: Number of epochs; each model keeps its best one by validation objective.
        pretrain_epochs: Epochs without the penalty at the beginning.
        lr: Learning rate of Adam.
    """

    epochs: int = 20
    pretrain_epochs: int = 1
    lr: float = 1e-3

    def __post_init__(self) -> None:
        check_at_least(1, epochs=self.epochs)
        check_at_least(0, pretrain_epochs=self.pretrain_epochs)
        if not self.lr > 0:
            raise InputError(f"lr = {self.lr}: expected a positive learning rate.")


def is_vanilla(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows of results are of a vanilla model: no penalty, no adversary, nothing removed."""
    return (rows["eta"] == 0) & (rows["adversary_lr"] == 0) & (rows["remove"] == "")


def setting_name(row: pd.Series) -> str:
    """Return a short name of the setting of a row of results."""
    if row["adversary_lr"]:
        return f"ARL, adversary_lr {row['adversary_lr']:g}"
    if row["eta"]:
        return f"eta {row['eta']:g}, beta {row['beta']:g}"
    return "eta 0 (vanilla)" if row["method"] in _PLAIN_AT_ETA_0 else f"eta 0 ({row['method']})"


def reference_name(row: pd.Series) -> str:
    """Return the name of the setting without a penalty: vanilla, unless its data were changed."""
    return "vanilla" if row["method"] in _PLAIN_AT_ETA_0 else "eta 0"
