"""The user's own table: a CSV or Parquet file in memory, or a directory of Parquet files streamed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import (
    MISSING_VALUES,
    Missing,
    TableSpec,
    check_column,
    check_group_names,
    check_trained_columns,
    infer_kinds,
    known_labels,
    label_codes,
    labels,
    make_frame,
)
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.datamodules.encoding import OTHER, TableEncoder
from fairrf_lightning.datamodules.files import RawTable, read_file
from fairrf_lightning.datamodules.leakage import protected_inputs_notice
from fairrf_lightning.datamodules.loader import EpochBatches, Order, TensorBatches
from fairrf_lightning.datamodules.parquet import ParquetDirectory
from fairrf_lightning.datamodules.streaming import StreamedBatches, StreamedTable
from fairrf_lightning.errors import InputError, check_at_least
from fairrf_lightning.files import is_address


class TableDataModule(TabularDataModule):
    """The user's own table, for binary classification.

    ``path`` is a CSV file (also compressed by gzip) or a Parquet file, which is held in memory, or a
    directory of Parquet files, local or remote (``s3://bucket/people``), which is streamed. ``url`` and
    ``sha256`` name a file that is downloaded once. Columns are matched by their exact names. All columns
    except the target, S and those in ``drop`` are inputs. A CSV column whose values are all numbers is
    numeric, any other is categorical; a Parquet column has the kind of its type. Dates, free text and
    identifiers raise an error with advice.

    Training, validation and testing use the parts of the split. Prediction covers every row of the
    file, in order, and needs neither target nor S: columns, encoding and the meaning of the label come
    from the checkpoint. In testing, options left out are those of the checkpoint as well.

    Args:
        path: CSV file, Parquet file, or directory of Parquet files, which may be an address such as
            ``s3://bucket/people``.
        url: Address of a CSV or Parquet file, in place of ``path``.
        sha256: Checksum of the file at ``url``.
        target: Column of the label, which has two values.
        positive: Value of the target that is the positive class; needed unless it is 1 or true.
        related: Columns related to S.
        sensitive: Column of S, for the gaps in validation and testing. It may be missing in some
            rows, which then do not count for the gaps. Without S, gaps are not reported.
        categorical: Columns to take as categories, whatever they look like.
        numeric: Columns to take as numbers, whatever they look like.
        drop: Columns to leave out.
        missing: ``indicator``: a missing category is a category, and a missing number is the
            training median, marked by a second column. ``drop``: leave out the rows, also in
            prediction. Rows without a label are always left out. The number of rows is printed.
        missing_values: Cells that count as missing; by default empty ones, ``NA``, ``NaN``, ``null``
            and the like.
        min_count: Categories with fewer training rows are folded into one, ``(other)``, which
            categories not seen in training also belong to.
        max_categories: Maximum number of categories of a column; less frequent ones are folded as well.
        encoding: Encoding of a CSV file; by default UTF-8, with or without byte order mark.
        delimiter: Separator of the cells of a CSV file.
        shuffle_buffer: For a directory, number of rows among which training rows are shuffled.
        num_workers: For a directory, number of reading processes per rank; 0 reads in a thread.
        kwargs: Options of :class:`TabularDataModule`.
    """

    name = "table"

    def __init__(
        self,
        path: str | None = None,
        *,
        url: str | None = None,
        sha256: str | None = None,
        target: str | None = None,
        positive: str | int | float | bool | None = None,
        related: list[str] | None = None,
        sensitive: str | None = None,
        categorical: list[str] | None = None,
        numeric: list[str] | None = None,
        drop: list[str] | None = None,
        missing: Missing = "indicator",
        missing_values: list[str] | None = None,
        min_count: int = 5,
        max_categories: int = 100,
        encoding: str | None = None,
        delimiter: str = ",",
        shuffle_buffer: int = 1 << 17,
        num_workers: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(related=related, **kwargs)
        check_at_least(1, min_count=min_count, max_categories=max_categories, shuffle_buffer=shuffle_buffer)
        check_at_least(0, num_workers=num_workers)
        self.url, self.sha256 = url, sha256
        self._path = _checked_path(path, url, sha256)
        if self._path is not None:
            # The run may be loaded from another folder.
            self.hparams["path"] = self._path
        elif url is not None and sha256 is not None:
            name = PurePosixPath(unquote(urlsplit(url).path)).name or "table.csv"
            self.files = (RemoteFile(name, sha256.lower(), None, url, cache_folder=sha256.lower()[:16]),)
        self.spec = TableSpec(
            target=target,
            sensitive=sensitive,
            include_sensitive=self.include_sensitive,
            categorical=tuple(categorical or ()),
            numeric=tuple(numeric or ()),
            drop=tuple(drop or ()),
            missing=missing,
            missing_values=MISSING_VALUES if missing_values is None else ("", *missing_values),
            min_count=min_count,
            max_categories=max_categories,
        )
        self.target, self.sensitive, self.positive = target or "", sensitive, positive
        self.encoding, self.delimiter = encoding, delimiter
        self.shuffle_buffer, self.num_workers = shuffle_buffer, num_workers
        self._label_codes: dict[str, int] | None = None
        self._checksum = ""
        self._noted: list[str] = []
        self._unlabelled: str | None = None
        self._resumed_from: str | None = None  # a notice: another table than that of the first epochs
        self._stream: StreamedTable | None = None

    @property
    def path(self) -> str:
        """The file, directory or address; a file of ``url`` is downloaded on first use."""
        if self._path is None:
            self._path = str(fetch(self.files[0], self.data_dir))
        return self._path

    @property
    def is_streamed(self) -> bool:
        """Whether rows are read during training: those of a directory or of remote storage."""
        return is_address(self.path) or Path(self.path).is_dir()

    @property
    def display_name(self) -> str:
        """Name of the file or directory, for reports."""
        if self.files:
            return self.files[0].name
        if is_address(self.path):
            return PurePosixPath(urlsplit(self.path).path).name or self.path
        return Path(self.path).resolve().name

    def read(self) -> pd.DataFrame:
        """Return the rows of the file that have a label: the target as 0/1, the inputs and S."""
        raw = self._read_file()
        self._check_checksum(raw.checksum)
        self.spec.check(raw.table.column_names, self.related)
        frame = self._labelled_rows(raw, self.encoder if self.is_restored else None)
        column = frame[self.target].array.remove_unused_categories()
        if self._label_codes is None:
            self._label_codes = label_codes(self.target, column.categories, self.positive)
        if self.sensitive is not None:
            names = sorted(frame[self.sensitive].dropna().unique())
            check_group_names(self.sensitive, names, chosen=self.groups != "all")
        return frame.assign(**{self.target: labels(self.target, column, self._label_codes)})

    def notices(self) -> list[str]:
        """Return notes for the user on the table and the inputs of the model."""
        named = {self.sensitive, *self.related}
        notice = protected_inputs_notice(name for name in self.trained_columns if name not in named)
        lines = (self._other_table() or self._resumed_from, *self._noted, self._unlabelled, notice)
        return [line for line in lines if line is not None]

    def read_columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Return columns of the rows that have a label, those named in ``drop`` among them."""
        if self.is_streamed:
            raise InputError(
                f"groups: other columns than S are not read from a directory ({self.path}); predict, join "
                "the columns to the predictions and audit that file"
            )
        raw = self._read_file()
        for name in names:
            check_column("groups", name, [other for other in raw.table.column_names if other != self.target])
        return self._labelled_rows(raw, self.encoder, names)[list(names)]

    def predict_dataloader(self) -> EpochBatches:
        """Return all rows of the file, in order, with their row numbers."""
        if not self._is_built and not self.is_restored:
            raise InputError(
                "prediction needs the encoding learned in training: give the checkpoint (ckpt_path), or "
                "set this data module up for training first"
            )
        spec = replace(self.spec, target=None, sensitive=None)
        if self.is_streamed:
            stream = StreamedTable.for_prediction(self.path, spec, self.encoder)
            self._note_if_trained_on(stream.directory.checksum)
            return self._streamed(stream, "all", ("inputs", "row"), self.eval_batch_size, self._order())
        raw = self._read_file()
        self._note_if_trained_on(raw.checksum)
        tensors, self._noted = _rows_to_predict(raw, spec, self.encoder)
        return TensorBatches(tensors, self.eval_batch_size, **self._order())

    def known_columns(self, rows: NDArray[np.int64]) -> pd.DataFrame:
        """Return the label, if all rows have a known one, and S, if the file has its column."""
        if self.is_streamed:
            return pd.DataFrame(index=range(len(rows)))
        raw = self._read_file()
        named = (self.target, self.sensitive)
        roles = [name for name in named if name is not None and name in raw.table.column_names]
        frame = make_frame(raw.table, dict.fromkeys(roles, "category"), self.spec).iloc[rows]
        frame = frame.reset_index(drop=True)
        known: dict[str, Any] = {}
        if self.target in frame and self._label_codes is not None:
            codes = known_labels(frame[self.target].array, self._label_codes)
            unknown = np.isnan(codes)
            known = {} if unknown.any() else {"target": codes.astype(int)}
            if unknown.any() and frame[self.target].notna().any():
                self._unlabelled = _no_labels(self.target, frame[self.target][unknown], len(frame))
        if self.sensitive in frame:
            known[str(self.sensitive)] = frame[self.sensitive].astype("object")
        return pd.DataFrame(known, index=range(len(rows)))

    @property
    def split_sizes(self) -> dict[str, int]:
        """Rows in ``train``, ``val`` and ``test``."""
        self.setup()
        return super().split_sizes if self._stream is None else self._stream.sizes

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor as they are in force; they distinguish results on one table."""
        return super().options | asdict(self.spec)

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint keeps, as plain values."""
        return super().state_dict() | {
            **self.spec.state(),
            "checksum": self._checksum,
            "counts": self._stream.counts if self._stream else [],
            "group_values": self._stream.group_values if self._stream else [],
            "label_codes": self._label_codes,
        }

    def _restore_options(self, state_dict: Mapping[str, Any]) -> None:
        super()._restore_options(state_dict)
        self.spec = self.spec.restored(state_dict)
        self.target, self.sensitive = state_dict["target"], self.spec.sensitive
        self._label_codes = state_dict["label_codes"]
        # S may have been an input without being named as such.
        self.include_sensitive = self.sensitive in self.encoder.owners

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore seed, split and encoding of the checkpoint where they differ; note another table."""
        super().load_state_dict(state_dict)
        if self.trainer is not None and self.trainer.state.fn == "fit" and self._other_table():
            self._resumed_from = (
                f"{self.path} is not the table that the run was started with: the model was trained on both, "
                "and test rows may be among those that it was trained on before."
            )

    @property
    def _needs_rows(self) -> bool:
        return self.trainer is None or not self.trainer.predicting

    @property
    def _is_built(self) -> bool:
        return super()._is_built or self._stream is not None

    def _build(self) -> None:
        if not self.is_streamed:
            super()._build()
        elif self._loaded is not None:
            self._stream = StreamedTable.restore(self.path, self.spec, self._loaded)
        elif self._methods:
            raise InputError(
                f"{self._methods[0]}: {self.path} is a directory, for which it is not available."
            )
        else:
            self._check_related(ParquetDirectory(self.path).empty_table.column_names)
            self._stream = StreamedTable.learn(
                self.path,
                self.spec,
                self.related,
                positive=self.positive,
                seed=self.split_seed,
                split=self.split,
            )
        if self._stream is not None:
            self._stream = stream = self._stream.comparing(self.groups)
            self._encoder, self._group_names = stream.encoder, stream.group_names
            self._label_codes = stream.label_codes
            self._check_checksum(stream.directory.checksum)

    def _read_file(self) -> RawTable:
        return read_file(Path(self.path), self.encoding, self.delimiter)

    def _labelled_rows(
        self, raw: RawTable, encoder: TableEncoder | None, also: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Return inputs, target and S of the rows that have a label.

        Args:
            raw: The table as read.
            encoder: Names the inputs, if it was learned before.
            also: Columns to return as categories, whether or not they are inputs.
        """
        columns, spec = raw.table.column_names, self.spec
        if encoder is None:
            kinds = infer_kinds(raw.table, spec.features(columns), spec, typed=raw.typed)
        else:
            hidden = self.related if self.remove_related else []
            check_trained_columns([*encoder.kinds, *hidden], columns)
            kinds = encoder.kinds | infer_kinds(raw.table, hidden, spec, typed=raw.typed)
        features = list(kinds)
        kinds |= {name: "category" for name in (spec.target, spec.sensitive, *also) if name is not None}
        frame = make_frame(raw.table, kinds, spec)
        self._noted = [
            f"column '{name}' numbers the rows, and is an input of the model. To leave it out: --data.drop."
            for name in features
            if kinds[name] == "number" and frame[name].diff().iloc[1:].eq(1).all() and len(frame) > 1
        ]
        kept = spec.kept_rows(frame, features, labelled=True, report=True)
        return frame[kept].reset_index(drop=True)

    def _fit_encoder(self, train: pd.DataFrame) -> TableEncoder:
        return TableEncoder.fit(train, self.spec, self.related)

    def _batches(self, part: str, keys: tuple[str, ...], batch_size: int, order: Order) -> EpochBatches:
        if self._stream is None:
            return super()._batches(part, keys, batch_size, order)
        return self._streamed(self._stream, part, keys, batch_size, order)

    def _streamed(
        self, stream: StreamedTable, part: str, keys: tuple[str, ...], batch_size: int, order: Order
    ) -> StreamedBatches:
        return StreamedBatches(
            stream,
            part,
            keys,
            batch_size,
            buffer_size=self.shuffle_buffer,
            num_workers=self.num_workers,
            **order,
        )

    def _check_checksum(self, checksum: str) -> None:
        self._checksum = checksum
        if (line := self._other_table()) is not None:
            rank_zero_warn(line)

    def _other_table(self) -> str | None:
        if not self._loaded or self._checksum in ("", self._loaded["checksum"]):
            return None
        return (
            f"{self.path} is not the table that the checkpoint was trained on: its rows are split by "
            "their number, and some that were trained on may be among those evaluated."
        )

    def _note_if_trained_on(self, checksum: str) -> None:
        if checksum == (self._loaded or {}).get("checksum", self._checksum):
            rank_zero_info(
                f"Data: {self.path} was trained on, and its training rows are predicted as well. Measured on "
                "them, a model looks better than it is: audit the run, which takes its test rows only."
            )


def _checked_path(path: str | None, url: str | None, sha256: str | None) -> str | None:
    """Return the path if there is one; raise unless exactly one of ``path`` and ``url`` is given."""
    if (path is None) == (url is None):
        raise InputError("path: expected a file or directory, or else url and sha256 of a download")
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"url: '{url}' is not an address; give a local file by path")
        if sha256 is None or not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise InputError(
                f"sha256: {sha256 or 'missing'}; the checksum of the file at url has 64 hexadecimal digits. "
                "Download the file once, check it, and run: sha256sum FILE"
            )
        return None
    if is_address(str(path)):
        return str(path)
    found = Path(str(path)).expanduser()
    if not found.exists():
        raise InputError(f"path: there is no file or directory {path}")
    return os.path.abspath(found)  # noqa: PTH100 - resolve() follows links


def _no_labels(target: str, values: pd.Series[Any], rows: int) -> str:
    """Return the notice that predictions have no label, because of these values of the target."""
    found = values.dropna().unique()
    what = f"values that training did not have, such as '{found[0]}'," if len(found) else "no value"
    return (
        f"the predictions have no column 'target': '{target}' has {what} in {len(values):,} of {rows:,} "
        "rows. An audit of them measures selection rates only."
    )


def _rows_to_predict(
    raw: RawTable, spec: TableSpec, encoder: TableEncoder
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the encoded inputs of all rows with their numbers, and notices about their categories."""
    check_trained_columns(encoder.kinds, raw.table.column_names)
    frame = make_frame(raw.table, encoder.kinds, spec)
    kept = spec.kept_rows(frame, list(encoder.kinds), labelled=False, report=True)
    rows = frame[kept]
    tensors = {"inputs": encoder.transform(rows), "row": torch.from_numpy(kept.nonzero()[0])}
    if not (unseen := encoder.unseen(rows)):
        return tensors, []
    found = ", ".join(f"'{name}' in {count:,}" for name, count in unseen.items())
    notice = (
        f"categories that were rare or absent in training: {found} of {len(rows):,} rows. The model treats "
        f"them as {OTHER} if training had such rows, else as no category."
    )
    return tensors, [notice]
