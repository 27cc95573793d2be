"""What distinguishes the models of an experiment, and what they have in common."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pandas as pd

from fairrf_lightning.backbones import BackboneName
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.functional import Statistic, check_beta
from fairrf_lightning.penalty import Given

LambdaRule: TypeAlias = Literal["kkt", "worst_case", "fixed"]

DEFAULT_HIDDEN = (64, 32)
_CHOICES: dict[str, tuple[str, ...]] = {
    "backbone": get_args(BackboneName),
    "rule": get_args(LambdaRule),
    "statistic": get_args(Statistic),
    "given": get_args(Given),
}


class Recipe(NamedTuple):
    """What the models of one stack share; settings that differ in it train as separate stacks."""

    backbone: BackboneName
    dropout: float
    hidden: tuple[int, ...]
    statistic: Statistic
    given: Given
    rule: LambdaRule
    uses_sensitive: bool
    adversary_after: int | None


@dataclass(frozen=True)
class Setting:
    """One way to train a model; with a seed it is a model.

    Args:
        eta: Weight of the penalty; 0 is the vanilla model.
        beta: Weight of ``|lambda|^2``.
        related: Related features; by default those of the data module.
        removed: Features that are no inputs of the model (RemoveR); they may still be related.
        rule: How lambda follows the penalties: ``"kkt"``, ``"worst_case"``, or ``"fixed"``.
        statistic: ``"covariance"`` or ``"correlation"``.
        given: ``"all"`` rows or the ``"positives"``.
        backbone: ``"mlp"``, ``"linear"`` or ``"svm"``.
        dropout: Dropout of the MLP.
        hidden: Sizes of the MLP's hidden layers.
        uses_sensitive: Whether S takes the place of the related features (ConstrainS). It then is in
            the training batches, for the penalty only; it stays no input of the model.
        adversary_lr: Learning rate of the adversary of ARL, which weighs the rows; 0 for no adversary.
        adversary_after: Steps that the learner of ARL trains alone.
        method: A name for reports.

    >>> Setting(eta=0.6).recipe.backbone
    'mlp'
    """

    eta: float = 0.3
    beta: float = 0.5
    related: tuple[str, ...] | None = None
    removed: tuple[str, ...] = ()
    rule: LambdaRule = "kkt"
    statistic: Statistic = "covariance"
    given: Given = "all"
    backbone: BackboneName = "mlp"
    dropout: float = 0.1
    hidden: tuple[int, ...] = DEFAULT_HIDDEN
    uses_sensitive: bool = False
    adversary_lr: float = 0.0
    adversary_after: int = 250
    method: str = "fairrf"

    def __post_init__(self) -> None:
        check_beta(self.beta)
        if not 0 <= self.eta < float("inf"):
            raise InputError(f"eta = {self.eta}: expected 0 (no penalty) or a positive number.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(f"{name} = {value!r}: no such choice; {did_you_mean(str(value), choices)}")
        self._check_adversary()

    def _check_adversary(self) -> None:
        if not 0 <= self.adversary_lr < float("inf"):
            raise InputError(f"adversary_lr = {self.adversary_lr}: expected 0 (none) or a positive number.")
        if self.adversary_after < 0:
            raise InputError(f"adversary_after = {self.adversary_after}: expected 0 or more steps.")
        if self.adversary_lr and (self.eta or self.removed or self.backbone == "svm"):
            raise InputError(
                f"adversary_lr = {self.adversary_lr}: ARL has no penalty (eta = 0), sees all inputs "
                "(nothing removed), and weighs a cross entropy (no svm)."
            )

    @property
    def recipe(self) -> Recipe:
        """What it has to share with other settings to be trained in one stack with them."""
        # Dropout and layers say nothing to a linear model: they must not keep equal recipes apart.
        dropout, hidden = (self.dropout, self.hidden) if self.backbone == "mlp" else (0.0, ())
        after = self.adversary_after if self.adversary_lr else None
        shared = (self.backbone, dropout, hidden, self.statistic, self.given, self.rule, self.uses_sensitive)
        return Recipe(*shared, adversary_after=after)

    def related_in(self, data: TabularDataModule) -> tuple[str, ...]:
        """Return the related features on these data."""
        if (self.uses_sensitive or data.expose_sensitive) and data.sensitive is not None:
            return (data.sensitive,)
        if data.ksmote is not None:
            return ("cluster",)
        return tuple(data.related) if self.related is None else self.related

    def as_row(self, data: TabularDataModule) -> dict[str, Any]:
        """Return its options as the values of a row of results."""
        joined = {"related": "+".join(self.related_in(data)), "removed": "+".join(self.removed)}
        joined["hidden"] = "x".join(map(str, self.hidden))
        return {"method": self.method} | asdict(self) | joined


# The columns of a row of results that tell settings apart.
SETTING_COLUMNS = [option.name for option in fields(Setting)]
TEXT_COLUMNS = ("related", "removed", "hidden")
FLOAT_COLUMNS = tuple(option.name for option in fields(Setting) if option.type == "float")
# Methods that are the vanilla classifier where eta is 0; of others, such as KSMOTE, the data differ.
_PLAIN_AT_ETA_0 = ("vanilla", "fairrf", "constrain_s")


def is_vanilla(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows of results are of a plain classifier: no penalty, no adversary, nothing removed."""
    return (rows["eta"] == 0) & (rows["adversary_lr"] == 0) & (rows["removed"] == "")


def setting_name(row: pd.Series) -> str:
    """Return the setting of a row of results in a few words."""
    if row["adversary_lr"]:
        return f"ARL, adversary_lr {row['adversary_lr']:g}"
    if row["eta"]:
        return f"eta {row['eta']:g}, beta {row['beta']:g}"
    return "eta 0 (vanilla)" if row["method"] in _PLAIN_AT_ETA_0 else f"eta 0 ({row['method']})"


def reference_name(row: pd.Series) -> str:
    """Return what the setting without a penalty is called: vanilla, unless its data were changed."""
    return "vanilla" if row["method"] in _PLAIN_AT_ETA_0 else "eta 0"


@dataclass(frozen=True)
class Schedule:
    """How long and how fast all models of an experiment train.

    Args:
        epochs: Epochs in all; the best one by validation objective is kept.
        pretrain_epochs: Epochs without the penalty at the beginning.
        update_every: Optimiser steps between updates of lambda.
        lr: Learning rate of Adam.
    """

    epochs: int = 20
    pretrain_epochs: int = 1
    update_every: int = 50
    lr: float = 1e-3

    def __post_init__(self) -> None:
        least = {"epochs": 1, "pretrain_epochs": 0, "update_every": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise InputError(f"{name} = {getattr(self, name)}: expected {minimum} or more.")
        if not self.lr > 0:
            raise InputError(f"lr = {self.lr}: expected a positive learning rate.")
