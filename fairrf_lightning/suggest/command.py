"""``python train.py suggest --data adult --audit-sample file.csv``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jsonargparse import Namespace

from fairrf_lightning.class_paths import import_class
from fairrf_lightning.cli.short_names import ShortNameParser
from fairrf_lightning.datamodules.base import TabularDataModule, split_rows
from fairrf_lightning.datamodules.columns import TableSpec, check_column, infer_kinds, make_frame
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.datamodules.table import TableDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.printed_command import shell_command
from fairrf_lightning.suggest.association import MAX_ROWS, associations, joint_association
from fairrf_lightning.suggest.proposal import propose
from fairrf_lightning.suggest.show import Ranking, print_proposals, print_without_sensitive

_OWN_OPTIONS = ("audit_sample", "sensitive", "min_association", "max_ratio", "seed")


class _Known(NamedTuple):
    """Rows where S is known."""

    columns: dict[str, pd.Series[Any]]
    sensitive: pd.Series[Any]
    source: str


def run_suggest(args: Sequence[str]) -> None:
    """Rank the columns by their association with S and with the label, and propose related features."""
    options = _parser().parse_args([arg.replace("--audit-sample", "--audit_sample") for arg in args])
    _check(options)
    data = _data(options)
    table = data.read()
    hidden = {data.target, data.sensitive, options.sensitive}
    features = [name for name in table.columns if name not in hidden]
    target = associations({name: table[name] for name in features}, table[data.target], options.seed)
    known = _known(options, data, table, features)
    if known is None:
        print_without_sensitive(target, data.target)
        return
    sensitive = associations(known.columns, known.sensitive, options.seed)
    proposals = propose(sensitive, target, options.min_association, options.max_ratio)
    taken = {one.name: known.columns[one.name] for one in proposals if one.verdict == "take"}
    joint = joint_association(taken, known.sensitive) if taken else 0.0
    name = str(known.sensitive.name)
    size = min(int(known.sensitive.notna().sum()), MAX_ROWS)
    fit = fit_command(args, list(taken), name if _is_unmarked(data, table, name) else None)
    print_proposals(Ranking(proposals, name, data.target, joint, known.source, size, fit))


def fit_command(args: Sequence[str], related: Sequence[str], sensitive: str | None = None) -> str:
    """Return the command that trains on the same data with these related features.

    Args:
        args: The arguments of ``suggest``, of which those on the data are kept.
        related: The related features.
        sensitive: A column of the data that holds S and is not marked as S by the arguments.
    """
    kept: list[str] = []
    is_ours = False
    for arg in args:
        if arg.startswith("-"):
            option = arg.partition("=")[0].removeprefix("--").replace("-", "_")
            is_ours = option in _OWN_OPTIONS or option in ("data.related", "data.init_args.related")
        if not is_ours:
            kept.append(arg)
    if sensitive is not None:
        kept.append(f"--data.sensitive={sensitive}")
    return shell_command("fit", *kept, f"--data.related={json.dumps(list(related), ensure_ascii=False)}")


def _is_unmarked(data: TabularDataModule, table: pd.DataFrame, sensitive: str) -> bool:
    """Return whether S is a column of the user's table that would be an input of the model."""
    return isinstance(data, TableDataModule) and data.sensitive is None and sensitive in table.columns


def _parser() -> ShortNameParser:
    parser = ShortNameParser(
        prog="train.py suggest",
        description="Rank columns by their association with S and the label, and propose related features.",
        exit_on_error=False,
    )
    parser.add_lightning_class_args(TabularDataModule, "data", subclass_mode=True, required=False)
    add = parser.add_argument
    add("--audit_sample", type=str, default=None, help="CSV or Parquet file of rows where S is known.")
    add("--sensitive", type=str, default=None, help="Column of S: in the sample, or else in the data.")
    add("--min_association", type=float, default=0.1, help="Minimum association with S of a related feature.")
    add(
        "--max_ratio",
        type=float,
        default=3.0,
        help="Maximum ratio of label association to S association.",
    )
    add("--seed", type=int, default=0, help="Seed of shuffles and resamples.")
    return parser


def _check(options: Namespace) -> None:
    if not options.get("data"):
        raise InputError("no data: name a data set, for example --data adult.")
    if not 0 <= options.min_association <= 1:
        raise InputError(f"--min_association {options.min_association}: expected a number from 0 to 1.")
    if not options.max_ratio > 0:
        raise InputError(f"--max_ratio {options.max_ratio}: expected a positive number.")


def _data(options: Namespace) -> TabularDataModule:
    init_args: dict[str, Any] = vars(options.data.init_args) if "init_args" in options.data else {}
    data: TabularDataModule = import_class(options.data.class_path)(**init_args)
    if isinstance(data, TableDataModule) and data.path.is_dir():
        raise InputError(f"suggest reads one file, not a directory ({data.path}): name one of its files.")
    data.prepare_data()
    return data


def _known(
    options: Namespace, data: TabularDataModule, table: pd.DataFrame, features: Sequence[str]
) -> _Known | None:
    if options.audit_sample is not None:
        name = options.sensitive or data.sensitive
        if name is None:
            raise InputError("--audit_sample: say by --sensitive which of its columns is S.")
        return _from_sample(options.audit_sample, name, features, getattr(data, "spec", TableSpec()))
    if options.sensitive is None:
        return None
    check_column("--sensitive", options.sensitive, [name for name in table.columns if name != data.target])
    # S of training rows stays unseen: the proposal is made from validation rows.
    rows = split_rows(len(table), data.split, data.seed or 0)["val"]
    part = table.iloc[rows.numpy()].reset_index(drop=True)
    source = f"the {len(part):,} validation rows"
    return _Known({name: part[name] for name in features}, part[options.sensitive], source)


def _from_sample(path: str, sensitive: str, features: Sequence[str], spec: TableSpec) -> _Known:
    raw = read_file(Path(path))
    columns = raw.table.column_names
    check_column(f"--audit_sample {path}", sensitive, columns)
    shared = [name for name in features if name in columns and name != sensitive]
    if not shared:
        raise InputError(
            f"--audit_sample {path}: it shares no column with the data, which have {', '.join(features)}."
        )
    kinds = infer_kinds(raw.table, shared, spec, typed=raw.typed)
    frame = make_frame(raw.table, kinds | {sensitive: "category"}, spec)
    frame = frame[frame[sensitive].notna()].reset_index(drop=True)
    if len(frame) < 20:
        raise InputError(
            f"--audit_sample {path}: {len(frame)} rows where {sensitive} is known, expected 20 or more."
        )
    source = f"{path} ({len(frame):,} rows)"
    return _Known({name: frame[name] for name in shared}, frame[sensitive], source)
