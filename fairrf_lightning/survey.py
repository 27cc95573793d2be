"""A survey: a few hundred people whose sensitive attribute is known, next to a table without it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from pandas.api.types import is_numeric_dtype
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import normalise_label
from fairrf_lightning.datamodules.sensitive import Sample, check_randomized, read_sample
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.metrics.counts import Gap

MIN_PEOPLE = 50
_MIN_EACH = 5
_MIN_EACH_OF_CLASS = 2  # people of each group among those of a class, for gaps given the class


@dataclass(frozen=True)
class Survey:
    """People whose group is known.

    Args:
        inputs: Encoded inputs ``(n, D)``.
        groups: Reported groups, 0 to G - 1, ``(n,)``; with randomised response not the true ones.
        target: True classes 0 or 1, ``(n,)``; ``None`` if they are not known.
        rows: Row numbers in the table, ``(n,)``; ``None`` for people who may not be in it.
        group_names: Names of the groups; with two groups the second one is S = 1.
        randomized: Probability that an answer was replaced by one drawn uniformly from the groups.
        name: Name of the sensitive attribute.

    Raises:
        InputError: If there are fewer than 50 people, fewer than two groups, or a group of fewer than five.
    """

    inputs: Tensor = field(repr=False)
    groups: Tensor = field(repr=False)
    target: Tensor | None = field(default=None, repr=False)
    rows: Tensor | None = field(default=None, repr=False)
    group_names: tuple[str, ...] = ("S = 0", "S = 1")
    randomized: float = 0.0
    name: str = "S"

    def __post_init__(self) -> None:
        parts = (self.inputs, self.groups, self.target, self.rows)
        lengths = {len(part) for part in parts if part is not None}
        if len(lengths) > 1:
            raise InputError(f"survey: its parts have {sorted(lengths)} rows; expected one number of people.")
        if self.inputs.ndim != 2 or not bool(self.inputs.isfinite().all()):
            raise InputError("survey: inputs: expected a table of encoded columns without missing values.")
        ids, labels = torch.arange(self.num_groups), torch.tensor([0, 1])
        if not bool(torch.isin(self.groups.cpu(), ids).all()):
            raise InputError(f"survey: groups: expected ids from 0 to {self.num_groups - 1}.")
        if self.target is not None and not bool(torch.isin(self.target.cpu(), labels).all()):
            raise InputError("survey: target: expected 0 or 1; None if the labels are not known.")
        check_randomized(self.randomized)
        if len(self) < MIN_PEOPLE:
            raise InputError(
                f"survey: {len(self)} people with a known '{self.name}'; at least {MIN_PEOPLE} are needed. A "
                "few hundred give useful intervals."
            )
        counts = torch.bincount(self.groups.long(), minlength=self.num_groups).tolist()
        found = dict(zip(self.group_names, counts, strict=True))
        if len(self) in counts:
            name = self.group_names[counts.index(len(self))]
            raise InputError(
                f"survey: all {len(self)} people have {self.name} = {name!r}; a gap compares two groups."
            )
        if min(counts) < _MIN_EACH:
            rare = min(found, key=lambda name: found[name])
            raise InputError(
                f"survey: {found[rare]} people with {self.name} = {rare!r}; at least {_MIN_EACH} of each "
                "group are needed. Survey more people, or name two groups to compare."
            )

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.group_names)

    @property
    def indicators(self) -> Tensor:
        """Unbiased estimates of membership, ``(n, G)``: 0 or 1, or corrected for randomised answers."""
        reported = torch.nn.functional.one_hot(self.groups.long(), self.num_groups).double()
        return (reported - self.randomized / self.num_groups) / (1 - self.randomized)

    @property
    def digest(self) -> str:
        """Digest of the people and the question, not of their answers."""
        people = self.inputs.detach().cpu().float().contiguous().numpy().tobytes()
        return hashlib.sha256(people + self.name.encode()).hexdigest()[:16]

    def can_estimate(self, gap: Gap) -> bool:
        """Return whether the people suffice for a gap: given the class, some of each group and class."""
        if not gap.needs_labels:
            return True
        if self.target is None:
            return False
        chosen = [self.groups[(self.target > 0.5) == bool(classes[0])].long() for classes in gap.classes]
        counts = [torch.bincount(groups, minlength=self.num_groups).min() for groups in chosen]
        return min(map(int, counts)) >= _MIN_EACH_OF_CLASS

    @classmethod
    def read(
        cls,
        path: str | Path,
        data: TabularDataModule,
        *,
        sensitive: str | None = None,
        group: str | None = None,
    ) -> Survey:
        """Read a survey from a CSV or Parquet file, with the encoding of the data.

        The file has a column with S, and either the row ids that ``survey draw`` writes or the columns that
        are inputs of the model and, optionally, the label. Lines without S are left out.

        Args:
            path: The file.
            data: The data.
            sensitive: Column with S; by default that of the data.
            group: Value of S that counts as S = 1, compared with all others. By default all values are
                groups, in alphabetical order, or those that the data compare.

        Raises:
            InputError: If the file cannot be read, its columns do not match, or it has too few people.
        """
        sample = read_sample(path, data, sensitive, option="--survey", kinds=data.encoder.kinds)
        answers = sample.frame[sample.sensitive]
        names, found = _group_names(sample, group, data)
        if group is not None:
            ids = torch.from_numpy((answers == group).to_numpy().astype(np.int64))
        else:
            ids = torch.tensor([names.index(name) if name in names else -1 for name in answers])
        if found > len(names) and sample.randomized:
            raise InputError(
                f"{sample.source}: its random answers were drawn from {found} groups, of which "
                f"{' and '.join(names)} cannot be compared alone. Compare all of them."
            )
        target = _labels(sample, data)
        kept = ids >= 0
        if others := sorted(answers[~kept.numpy()].unique()):
            rank_zero_warn(
                f"{sample.source}: people with {sample.sensitive} = {', '.join(others[:5])} are left out, "
                "which the data do not compare. Correct the spelling if it is one of the groups."
            )
        return cls(
            data.encoder.transform(sample.frame)[kept],
            ids[kept],
            None if target is None else target[kept],
            None if sample.rows is None else torch.tensor(sample.rows)[kept],
            names,
            sample.randomized,
            sample.sensitive,
        )

    def take(self, places: Tensor) -> Survey:
        """Return the survey of some of its people."""
        return replace(
            self,
            inputs=self.inputs[places],
            groups=self.groups[places],
            target=None if self.target is None else self.target[places],
            rows=None if self.rows is None else self.rows[places],
        )


def _group_names(sample: Sample, group: str | None, data: TabularDataModule) -> tuple[tuple[str, ...], int]:
    """Return the groups to compare, of which ``group`` is the second, and the number of values of S."""
    found = sorted(sample.frame[sample.sensitive].unique())
    if group is None:
        compared = data.group_names if sample.sensitive == data.sensitive else []
        return tuple(compared or found), len(found)
    if group not in found:
        raise InputError(
            f"--group {group}: no such value of {sample.sensitive} in {sample.source}; "
            f"{did_you_mean(group, found)}"
        )
    others = [name for name in found if name != group]
    return (others[0] if len(others) == 1 else f"not {group}", group), len(found)


def _labels(sample: Sample, data: TabularDataModule) -> Tensor | None:
    """Return the true classes 0 or 1, or ``None`` if the survey has no labels."""
    if data.target not in sample.frame:
        return None
    column = sample.frame[data.target]
    if is_numeric_dtype(column):  # rows of the table, whose labels are encoded
        return torch.tensor(column.to_numpy(dtype=np.float32))
    codes: Mapping[str, int] = getattr(data, "_label_codes", None) or {"0": 0, "1": 1}
    texts = column.astype("object").map(lambda value: normalise_label(str(value)), na_action="ignore")
    found = texts.map(codes)
    if found.isna().any():
        odd = texts[found.isna()].iloc[0]
        raise InputError(
            f"--survey {sample.source}: column '{data.target}' has the value '{odd}'; expected "
            f"{' or '.join(codes)}. Without this column dEO is not estimated."
        )
    return torch.tensor(found.to_numpy(dtype=np.float32))
