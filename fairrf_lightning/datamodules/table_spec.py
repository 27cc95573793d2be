"""How a user's table is to be read: which columns mean what, and how gaps in them are treated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from fairrf_lightning.errors import InputError, did_you_mean

Kind: TypeAlias = Literal["number", "category"]
Missing: TypeAlias = Literal["indicator", "drop"]

MISSING_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>")


@dataclass(frozen=True)
class TableSpec:
    """The options of :class:`~fairrf_lightning.datamodules.TableDataModule` that concern columns."""

    target: str | None = None
    sensitive: str | None = None
    include_sensitive: bool = False
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: Missing = "indicator"
    missing_values: tuple[str, ...] = MISSING_VALUES
    min_count: int = 5
    max_categories: int = 100

    def check(self, columns: Sequence[str], related: Sequence[str]) -> None:
        """Refuse names that are not columns, or that are used in two ways."""
        if self.target is None:
            raise InputError(f"target is not named: say which column is the label. Choices: {_some(columns)}")
        named = {
            "target": [self.target],
            "sensitive": [self.sensitive] if self.sensitive is not None else [],
            "related": related,
            "categorical": self.categorical,
            "numeric": self.numeric,
            "drop": self.drop,
        }
        for option, names in named.items():
            for name in names:
                check_column(option, name, columns)
        if self.target == self.sensitive:
            raise InputError(f"target and sensitive are both '{self.target}': they must be two columns")
        needed = {"target": [self.target], "related": related, "sensitive": named["sensitive"]}
        for option, names in needed.items():
            if both := sorted(set(names) & set(self.drop)):
                raise InputError(f"{option}: '{both[0]}' is also named in drop; take it out of one of them")
        if both := sorted(set(self.categorical) & set(self.numeric)):
            raise InputError(
                f"'{both[0]}' is named in categorical and in numeric; take it out of one of them"
            )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as plain values."""
        return {
            "target": self.target,
            "missing": self.missing,
            "missing_values": list(self.missing_values),
        }

    def restored(self, state: Mapping[str, Any]) -> TableSpec:
        """Return this specification with what a checkpoint says; S may be named anew, to measure gaps."""
        if self.target not in (None, state["target"]):
            raise InputError(
                f"target: '{self.target}' is named, but the checkpoint was trained for "
                f"'{state['target']}'; leave the option out"
            )
        return replace(
            self,
            target=state["target"],
            sensitive=self.sensitive or state["sensitive"],
            missing=state["missing"],
            missing_values=tuple(state["missing_values"]),
        )

    def features(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are inputs of the model."""
        hidden = {self.target, *self.drop}
        if not self.include_sensitive:
            hidden.add(self.sensitive)
        features = [name for name in columns if name not in hidden]
        if not features:
            raise InputError(f"no column is left for the inputs of the model; the table has {_some(columns)}")
        return features


def check_column(option: str, name: str, columns: Collection[str]) -> None:
    """Refuse a name that is not a column, and suggest the nearest ones."""
    if name not in columns:
        nearest = did_you_mean(name, columns) if len(columns) <= 50 else _nearest(name, columns)
        raise InputError(f"{option}: there is no column '{name}'; {nearest}")


def check_columns(needed: Collection[str], columns: Collection[str]) -> None:
    """Refuse a table that lacks columns that the model was trained on."""
    for name in needed:
        check_column("the model was trained on columns that the table lacks", name, columns)


def _nearest(name: str, columns: Collection[str]) -> str:
    question = did_you_mean(name, columns).partition("Choices: ")[0]
    return f"{question}Choices: {_some(columns)}"


def _some(values: Collection[str], most: int = 50) -> str:
    shown = ", ".join(list(values)[:most])
    return shown if len(values) <= most else f"{shown}, ... ({len(values):,} in all)"
