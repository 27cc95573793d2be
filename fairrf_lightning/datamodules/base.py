"""Base of the tabular data modules: split, encoding, loaders, and S kept out of training."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.datamodules.columns import Groups, check_column, check_groups, group_ids
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.datamodules.encoding import TableEncoder, check_state
from fairrf_lightning.datamodules.leakage import check_leakage
from fairrf_lightning.datamodules.loader import (
    EpochBatches,
    Order,
    TensorBatches,
    check_split,
    default_batch_size,
    default_update_interval,
    split_rows,
)
from fairrf_lightning.datamodules.penalty_columns import (
    KSMOTE,
    MembershipColumns,
    PenaltyColumns,
    is_column,
)
from fairrf_lightning.errors import InputError, check_at_least
from fairrf_lightning.presets import plain_values

_METHODS = ("expose_sensitive", "remove_related", "ksmote", "membership")
_FLAGS = ("include_sensitive", "expose_sensitive", "remove_related")


class TabularDataModule(LightningDataModule, ABC):
    """A table for binary classification with a sensitive attribute S and features related to it.

    A subclass names its columns and files and implements :meth:`read`. The split and the order of
    the training batches depend on ``seed``; the encoding is learned from the training rows.
    Batches are dicts:

    - training: ``inputs`` ``(N, D)`` and ``target`` ``(N,)``, never S;
    - validation and testing: also ``groups`` ``(N,)``, the ids of S;
    - all three: ``related``, columns that the penalty sees and the model does not, if there are any
      (only ``expose_sensitive`` puts S there);
    - prediction: ``inputs`` and ``row``, the row numbers in the table as read.

    Public properties set up the data on first use. A checkpoint keeps seed, split, encoding and the
    columns seen in training, and they are restored with it. So a checkpoint is never tested on rows that
    it was trained on.

    Args:
        related: Features related to S; by default those that the data set names.
        groups: Groups of S that the gaps compare, or ``all``; by default those that the data set names.
            Rows of other groups are trained on and count for accuracy; their id in ``groups`` is -1.
        batch_size: Training rows per batch and process; by default 512, or fewer so that an epoch has at
            least six batches (not below 16).
        eval_batch_size: Rows per batch and process in validation, testing and prediction.
        include_sensitive: Make S an input of the model, as the code of the paper's authors does.
        expose_sensitive: Let the penalty, not the model, see S in training, in place of the related
            features (ConstrainS).
        remove_related: Take the related features out of the inputs (RemoveR).
        ksmote: Balance classes within clusters of the training rows, and let the penalty see the
            clusters in place of the related features; ``{}`` for the defaults.
        membership: File of a survey (CSV or Parquet), YAML file of published correlations, or column of
            probabilities of S. The penalty sees the estimated membership in place of the related features.
        split: Shares of the training, validation and test rows.
        seed: Seed of the split and of the training order; by default that of ``seed_everything``.
        data_dir: Directory that holds the files, if they are not to be fetched.
    """

    target: str
    sensitive: str | None
    columns: tuple[str, ...] | None = None  # all columns but the target, when known beforehand
    default_related: tuple[str, ...] = ()
    default_groups: tuple[str, ...] | Literal["all"] = "all"
    table_options: ClassVar[tuple[str, ...]] = ()  # attributes that decide on the rows of the table
    files: tuple[RemoteFile, ...] = ()
    _encoder: TableEncoder

    def __init__(
        self,
        *,
        related: list[str] | None = None,
        groups: Groups | None = None,
        batch_size: int | None = None,
        eval_batch_size: int = 8192,
        include_sensitive: bool = False,
        expose_sensitive: bool = False,
        remove_related: bool = False,
        ksmote: KSMOTE | None = None,
        membership: str | None = None,
        split: tuple[float, float, float] = (0.5, 0.2, 0.3),
        seed: int | None = None,
        data_dir: str | None = None,
    ) -> None:
        super().__init__()
        # The checkpoint keeps these, so that a run can be loaded by its path alone. Not logged: names such
        # as `related` are options of the model as well.
        self.save_hyperparameters(logger=False)
        self.hparams.update(plain_values(self.hparams))
        if data_dir is not None:
            self.hparams["data_dir"] = str(Path(data_dir).expanduser().absolute())
        if membership is not None and Path(membership).is_file():
            self.hparams["membership"] = str(Path(membership).absolute())
        check_at_least(1, batch_size=batch_size, eval_batch_size=eval_batch_size)
        check_at_least(0, seed=seed)
        check_split(split)
        self.groups = self.default_groups if groups is None else groups
        check_groups(self.groups)
        self.related = list(self.default_related if related is None else related)
        self._batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.include_sensitive = include_sensitive
        self.expose_sensitive = expose_sensitive
        self.remove_related = remove_related
        self.ksmote = ksmote
        self.membership = membership
        if len(self._methods) > 1:
            raise InputError(f"{' and '.join(self._methods)} belong to different methods: give one of them.")
        self.split = split
        self.seed = seed
        self.data_dir = data_dir
        self.split_seed = 0
        self._parts: dict[str, dict[str, Tensor]] = {}
        self._penalty_columns: PenaltyColumns | None = None
        self._membership: MembershipColumns | None = None
        self._positives = False
        self.awaits_checkpoint = False
        self._loaded: dict[str, Any] | None = None
        self._group_names: list[str] = []
        if self.columns is not None:
            self._check_related(self.columns)

    @abstractmethod
    def read(self) -> pd.DataFrame:
        """Return the table: the target as 0/1, and the columns that may be inputs."""

    def read_columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Return columns as they are in the table, to measure gaps by them."""
        table = self.read()
        for name in names:
            check_column("groups", name, [column for column in table.columns if column != self.target])
        return table[list(names)]

    def prepare_data(self) -> None:
        """Fetch the files; Lightning calls this in one process of each machine."""
        for file in self.files:
            fetch(file, self.data_dir)

    def setup(self, stage: str | None = None) -> None:
        """Read, split and encode the table, once: for training now, else on first use."""
        if self._is_built:
            return
        # FairRFModule does not ask for the groups then, because the table would be read twice.
        self.awaits_checkpoint = stage not in (None, "fit")
        if not self.awaits_checkpoint:
            followed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
            self.split_seed = followed if self.seed is None else self.seed
            self._build()
            for notice in self.notices():
                _print_once(f"Data: {notice}")

    def notices(self) -> list[str]:
        """Return notes for the user on the table and the inputs of the model."""
        return []

    def train_dataloader(self) -> EpochBatches:
        """Return the training batches, without S unless it is exposed."""
        # to overfit is to repeat the same batches
        shuffle = not getattr(self.trainer, "overfit_batches", 0)
        return self._loader("train", ("inputs", "target", "related"), self.batch_size, shuffle=shuffle)

    def val_dataloader(self) -> EpochBatches:
        """Return the validation batches; S is there for the metrics."""
        return self._loader("val", ("inputs", "target", "related", "groups"), self.eval_batch_size)

    def test_dataloader(self) -> EpochBatches:
        """Return the test batches; S is there for the metrics."""
        return self._loader("test", ("inputs", "target", "related", "groups"), self.eval_batch_size)

    def predict_dataloader(self) -> EpochBatches:
        """Return the test rows without target and S, with their row numbers."""
        return self._loader("test", ("inputs", "row"), self.eval_batch_size)

    def rows_of(self, part: str) -> EpochBatches:
        """Return all rows of ``train``, ``val`` or ``test`` once, in order, with S and row numbers.

        For measuring: unlike the training batches, those of ``train`` carry S as well. Each process has all
        rows, so that all of them estimate the same.
        """
        keys = ("inputs", "target", "related", "groups", "row")
        return self._loader(part, keys, self.eval_batch_size, every_rank=True)

    def penalise_positives(self, *, positives: bool) -> None:
        """Choose membership among the positives, for equal opportunity, or among all rows.

        The module calls this by its option ``given``. Without membership it has no effect.

        Raises:
            InputError: If membership among the positives is not known.
        """
        if positives == self._positives:
            return
        if self._membership is not None and positives:
            self._membership.check_positives()
        self._positives = positives
        if self._membership is not None and self._is_built:
            self._build()

    @property
    def membership_source(self) -> str | None:
        """Source of the membership that the penalty sees: ``survey``, ``correlations`` or ``column``."""
        return None if self._membership is None else self._membership.source

    @property
    def is_streamed(self) -> bool:
        """Whether rows are read during training, not held in memory."""
        return False

    @property
    def display_name(self) -> str:
        """Name of the data set, for reports."""
        return str(getattr(self, "name", type(self).__name__))

    def known_columns(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Return the label and the sensitive attribute of predicted rows, as far as they are known.

        Args:
            rows: Row numbers, as in the batches of prediction.

        Returns:
            ``target`` (0 or 1) and the column of S, one line per row; groups that are not compared are
            missing.
        """
        part = self._parts["test"]
        found = pd.Index(part["row"].numpy()).get_indexer(pd.Index(rows))
        frame = pd.DataFrame({"target": part["target"].numpy()[found].astype(int)})
        if self.sensitive is not None:
            names = np.array([*self.group_names, None], dtype=object)  # id -1 is the last one
            frame[self.sensitive] = names[part["groups"].numpy()[found]]
        return frame

    @property
    def encoder(self) -> TableEncoder:
        """The encoding, learned from the training rows."""
        if not self.is_restored:
            self.setup()
        return self._encoder

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of ``inputs``."""
        return self.encoder.columns

    @property
    def n_features(self) -> int:
        """Number of columns of ``inputs``."""
        return len(self.feature_names)

    @property
    def related_columns(self) -> dict[str, list[int]]:
        """Columns of ``inputs``, or of ``related`` if batches carry it, for each related feature."""
        if self.penalty_columns is not None and self._penalty_columns is not None:
            return self._penalty_columns.columns
        owners = self.encoder.owners
        return {name: owners[name] for name in self.related}

    @property
    def penalty_columns(self) -> int | None:
        """Number of columns of ``related``, which batches carry if the related columns are no inputs."""
        self.setup()
        return None if self._penalty_columns is None else self._penalty_columns.matrix.shape[1]

    @property
    def group_names(self) -> list[str]:
        """Groups of S that are compared, sorted; their position is the id in ``groups``, else -1."""
        self.setup()
        return self._group_names

    @property
    def num_groups(self) -> int:
        """Number of groups of S that are compared; metrics that are not reported are made for two."""
        return len(self.group_names) or 2

    @property
    def split_sizes(self) -> dict[str, int]:
        """Rows in ``train``, ``val`` and ``test``."""
        self.setup()
        return {name: len(part["row"]) for name, part in self._parts.items()}

    @property
    def batch_size(self) -> int:
        """Training rows per batch and process; unless given, a number that suits the training rows."""
        return self._batch_size or default_batch_size(self.split_sizes["train"])

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        check_at_least(1, batch_size=value)
        self._batch_size = value

    @property
    def update_interval(self) -> int:
        """Optimiser steps between updates of lambda that suit the training rows."""
        return default_update_interval(self.split_sizes["train"])

    @property
    def trained_columns(self) -> list[str]:
        """Columns of the table that the model has seen in training."""
        return list(self.encoder.owners)

    @property
    def is_restored(self) -> bool:
        """Whether a checkpoint's state was loaded."""
        return self._loaded is not None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor as they are in force; they distinguish results on one table.

        A subclass that does not keep an argument as an attribute of the same name adds it here.
        """
        found = {name: getattr(self, name) for name in sorted(self.hparams) if hasattr(self, name)}
        if self.membership is not None and Path(self.membership).is_file():
            found["membership"] = hashlib.sha256(Path(self.membership).read_bytes()).hexdigest()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint keeps, as plain values."""
        return {
            "columns": list(self.encoder.owners),
            "encoder": self.encoder.state(),
            "feature_names": self.feature_names,
            "ksmote": None if self.ksmote is None else asdict(self.ksmote),
            "membership": None if self._membership is None else self._membership.state(),
            "related": list(self.related),
            "seed": self.split_seed,
            "sensitive": self.sensitive,
            "split": list(self.split),
            "table_options": {name: getattr(self, name) for name in self.table_options},
            **{name: getattr(self, name) for name in _FLAGS},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore seed, split and encoding of the checkpoint where they differ."""
        self.awaits_checkpoint = False
        if self._is_built and state_dict == self.state_dict():
            self._loaded = state_dict
            return
        check_state(state_dict)
        self._loaded, self._encoder = state_dict, TableEncoder.from_state(state_dict["encoder"])
        self._restore_options(state_dict)
        if self._needs_rows:
            rank_zero_info(f"Data: split (seed {self.split_seed}) and encoding are those of the checkpoint.")
            self._build()

    def _restore_options(self, state_dict: Mapping[str, Any]) -> None:
        self.split_seed = state_dict["seed"]
        self.split = tuple(state_dict["split"])
        self.related = list(state_dict["related"])
        self.ksmote = None if state_dict["ksmote"] is None else KSMOTE(**state_dict["ksmote"])
        methods = {name: state_dict[name] for name in _FLAGS}
        for name, value in (methods | state_dict["table_options"]).items():
            setattr(self, name, value)
        self._membership = MembershipColumns.from_state(state_dict.get("membership"))
        self.membership = self.membership if self._membership is not None else None

    def __str__(self) -> str:
        """Name the data set and the sizes of its parts, without setting them up."""
        if not self._is_built:
            return f"{type(self).__name__}(not set up)"
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.split_sizes.items())
        return f"{type(self).__name__}({sizes} rows; {self.n_features} features)"

    @property
    def _methods(self) -> list[str]:
        """The options given that replace the related features as the columns of the penalty."""
        return [name for name in _METHODS if getattr(self, name) not in (None, False)]

    @property
    def _is_built(self) -> bool:
        return bool(self._parts)

    @property
    def _needs_rows(self) -> bool:
        """Whether the rows of the split are needed once a checkpoint is restored."""
        return True

    def _build(self) -> None:
        table = self.read()
        self._check_related([name for name in table.columns if name != self.target])
        rows = split_rows(len(table), self.split, self.split_seed)
        if not (self.is_restored or self._is_built):
            self._encoder = self._learn_encoder(table, rows)
        tensors = {
            "inputs": self._encoder.transform(table),
            "target": torch.tensor(table[self.target].to_numpy(dtype="float32")),
            "row": torch.arange(len(table)),
        }
        if self.sensitive is not None:
            tensors["groups"], self._group_names = group_ids(table[self.sensitive], self.groups)
        self._penalty_columns = self._make_penalty_columns(table, tensors, rows["train"])
        if self._penalty_columns is not None:
            tensors["related"] = self._penalty_columns.matrix
        self._parts = {
            name: {key: tensor[chosen] for key, tensor in tensors.items()} for name, chosen in rows.items()
        }
        try:
            self._add_membership(table, tensors["inputs"], rows)
        except InputError:
            self._parts = {}  # a second call must not go on without membership
            raise

    def _add_membership(self, table: pd.DataFrame, inputs: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Give the batches columns of membership, estimated now or restored from a checkpoint."""
        if self.membership is not None and self._membership is None:
            train = table.iloc[rows["train"].numpy()]
            self._membership = MembershipColumns.make(self.membership, self, train)
            rank_zero_info(
                f"Data: the penalty sees membership ({self.membership}), not the related features."
            )
        if self._membership is None:
            return
        if (column := self._membership.column) and column not in table:
            table = self.read_columns([column])
        matrix = self._membership.matrix(inputs, table, positives=self._positives)
        self._penalty_columns = PenaltyColumns(matrix, {"membership": list(range(matrix.shape[1]))})
        for name, chosen in rows.items():
            self._parts[name]["related"] = matrix[chosen]

    def _learn_encoder(self, table: pd.DataFrame, rows: Mapping[str, Tensor]) -> TableEncoder:
        hidden = {self.target, *(self.related if self.remove_related else ())}
        hidden |= set() if self.include_sensitive else {self.sensitive}
        features = [name for name in table.columns if name not in hidden]
        if self.membership is not None and is_column(self.membership):
            check_column("membership", self.membership, features)
            features.remove(self.membership)
        encoder = self._fit_encoder(table[features].iloc[rows["train"].numpy()])
        if self.sensitive is not None and not self.include_sensitive:
            # S is legal on validation and test rows.
            held_out = table.iloc[torch.cat([rows["val"], rows["test"]]).numpy()]
            check_leakage(held_out[features], held_out[self.sensitive])
        return encoder

    def _fit_encoder(self, train: pd.DataFrame) -> TableEncoder:
        return TableEncoder.fit(train)

    def _make_penalty_columns(
        self, table: pd.DataFrame, tensors: Mapping[str, Tensor], train: Tensor
    ) -> PenaltyColumns | None:
        if self.expose_sensitive:
            if self.sensitive is None:
                raise InputError("expose_sensitive: name the column of S by sensitive")
            rank_zero_info(f"Data: {self.sensitive} is shown to the penalty in training (expose_sensitive).")
            return PenaltyColumns.indicators(self.sensitive, tensors["groups"], len(self._group_names))
        if self.remove_related:
            encoder = self._fit_encoder(table[self.related].iloc[train.numpy()])
            return PenaltyColumns(encoder.transform(table), dict(encoder.owners))
        if self.ksmote is not None:
            clusters = self.ksmote.cluster(tensors["inputs"], train, self.split_seed)
            return PenaltyColumns.indicators("cluster", clusters, self.ksmote.n_clusters)
        return None

    def _loader(
        self,
        part: str,
        keys: tuple[str, ...],
        batch_size: int,
        *,
        shuffle: bool = False,
        every_rank: bool = False,
    ) -> EpochBatches:
        self.setup()
        return self._batches(part, keys, batch_size, self._order(shuffle=shuffle, every_rank=every_rank))

    def _batches(self, part: str, keys: tuple[str, ...], batch_size: int, order: Order) -> EpochBatches:
        tensors = {key: tensor for key, tensor in self._parts[part].items() if key in keys}
        if part == "train" and self.ksmote is not None and "row" not in keys:  # made-up rows have no number
            tensors = self.ksmote.balance(tensors, self.split_seed)
        return TensorBatches(tensors, batch_size, **order)

    def _order(self, *, shuffle: bool = False, every_rank: bool = False) -> Order:
        trainer = None if every_rank else self.trainer
        rank, world_size = (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
        return {"shuffle": shuffle, "seed": self.split_seed, "rank": rank, "world_size": world_size}

    def _check_related(self, columns: Collection[str]) -> None:
        """Raise if related features are not in the data, or are S itself."""
        if not self.related and self.membership is None:
            raise InputError(
                "related is empty: name columns that are associated with the sensitive attribute; the "
                "command suggest proposes some"
            )
        for name in self.related:
            check_column("related", name, columns)
        if len(set(self.related)) < len(self.related):
            raise InputError(f"related names a feature twice: {', '.join(self.related)}")
        if self.sensitive in self.related and not self.include_sensitive:
            raise InputError(
                f"related: '{self.sensitive}' is the sensitive attribute, which is not an input of the "
                "model; leave it out, or set include_sensitive to true"
            )


@cache  # the seeds of a grid have one table
def _print_once(line: str) -> None:
    rank_zero_info(line)


def text_as_categories(table: pd.DataFrame) -> pd.DataFrame:
    """Give text columns the categories of the whole table: a model's width must not depend on the split."""
    text = table.select_dtypes(exclude="number").columns
    return table.astype(dict.fromkeys(text, "category"))


def keep_rows(table: pd.DataFrame, keep: pd.Series[bool], reason: str) -> pd.DataFrame:
    """Return the rows to keep, renumbered, and print how many were dropped and why."""
    kept = table[keep].reset_index(drop=True)
    if dropped := len(table) - len(kept):
        rank_zero_info(f"Data: dropped {dropped:,} of {len(table):,} rows: {reason}.")
    return kept
