"""``python train.py certify --ckpt_path best.ckpt --data adult --proxies proxies.yaml``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from fairrf_lightning.audit.checkpoint import evaluate_checkpoint
from fairrf_lightning.certificate.certify import ROWS_SHARE, Certificate, certify
from fairrf_lightning.certificate.proxies import Proxies, proxies_template, read_proxies, sample_proxies
from fairrf_lightning.certificate.show import print_certificate, statements
from fairrf_lightning.checkpoints import load_checkpoint, weights_digest
from fairrf_lightning.datamodules.columns import check_column
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.files import write_text
from fairrf_lightning.load import EvaluatedRows
from fairrf_lightning.option_parser import OptionParser


def run_certify(args: Sequence[str]) -> None:
    """Certify a bound on the gap of a checkpoint, print it and write it if asked to."""
    options, rest = option_parser().parse_known_args(list(args))
    if options.template is None and (options.proxies is None) == (options.audit_sample is None):
        raise InputError("certify needs what is known of S: name either --proxies or --audit-sample.")
    if not 0 < options.level < 1:
        raise InputError(f"--level {options.level}: expected a number between 0 and 1, such as 0.95.")
    for name in ("output", "template"):
        if getattr(options, name) is not None:
            _check_output(f"--{name}", Path(getattr(options, name)))
    rows = evaluate_checkpoint(rest, options.split)
    if options.template is not None:
        _write_template(rows, Path(options.template))
        return
    proxies = _proxies(options, rows)
    certificate = certify(
        rows.probabilities,
        rows.inputs[:, [rows.feature_names.index(name) for name in proxies.names]],
        proxies,
        level=options.level,
        sensitive=_measured(rows, proxies.group),
    )
    print_certificate(certificate)
    if options.output is not None:
        weights = weights_digest(load_checkpoint(rows.checkpoint)["state_dict"])
        about = {"checkpoint": rows.checkpoint, "weights": weights, "split": rows.split}
        write_certificate(certificate, Path(options.output), **about)


def _check_output(option: str, path: Path) -> None:
    """Raise before the work if a file cannot be written."""
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder; name a file in it, such as certificate.json.")
    with writing_to(f"{option} {path}", "name a file in another folder"):
        check_writable(path.parent)


def _write_template(rows: EvaluatedRows, path: Path) -> None:
    """Write a file for ``--proxies`` in which nothing is known yet; a file that is there stays."""
    if path.exists():
        _print(f"{path} is there already; it was not changed.")
        return
    columns = rows.feature_names
    if rows.related is None and rows.related_columns:
        columns = [rows.feature_names[column] for of in rows.related_columns.values() for column in of]
    with writing_to(f"--template {path}", "name a file in another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, proxies_template(columns))
    _print(f"Wrote {path}: replace the limits by what you know of S, and name it by --proxies.")


def _print(line: str) -> None:
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def write_certificate(certificate: Certificate, path: Path, **about: str) -> None:
    """Write a certificate as JSON, with its plain words."""
    content = about | certificate.to_dict() | {"statements": list(statements(certificate))}
    with writing_to(f"--output {path}", "name a file in another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=2) + "\n")


def option_parser() -> argparse.ArgumentParser:
    """Return the parser of what ``test`` does not know."""
    parser = OptionParser(
        prog="train.py certify",
        description="Bound the gap between groups that were never seen. All other options are those of test: "
        "--ckpt_path, --data, --data.path and so on.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--proxies", help="YAML file of S's share and its correlations with columns (docs/certificate.md).")
    add("--audit-sample", "--audit_sample", help="CSV or Parquet file of rows where S is known.")
    add("--sensitive", help="Column of S in the sample; by default that of the data.")
    add("--group", help="Value of S that is compared with all others.")
    add("--columns", help="Features to take from the sample: age,job; by default the related ones.")
    add("--split", default="test", help="Rows to certify: test, val or train.")
    add("--level", type=float, default=0.95, help="Confidence level.")
    add("--template", help="Write a file for --proxies with the related columns, to be filled in, and stop.")
    add("--output", help="JSON file to write the certificate to.")
    return parser


def _proxies(options: argparse.Namespace, rows: EvaluatedRows) -> Proxies:
    if options.proxies is not None:
        for name in ("sensitive", "group", "columns"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name} belongs to --audit-sample; with --proxies the file says it all.")
        return read_proxies(options.proxies, rows.feature_names)
    sensitive = options.sensitive or rows.data.sensitive
    if sensitive is None:
        raise InputError("--audit-sample: say by --sensitive which of its columns is S.")
    features = options.columns.strip("[] ").split(",") if options.columns else list(rows.data.related)
    for name in features:
        check_column("--columns" if options.columns else "related", name, rows.data.encoder.owners)
    return sample_proxies(
        options.audit_sample,
        rows.data,
        features,
        sensitive=sensitive,
        group=options.group,
        level=1 - (1 - ROWS_SHARE) * (1 - options.level),
    )


def _measured(rows: EvaluatedRows, group: str) -> Tensor | None:
    """Return S of all rows, if the data tell it and know the group."""
    if rows.data.sensitive not in rows.attributes:
        return None
    values = rows.attributes[rows.data.sensitive]
    member = (values == group).to_numpy(dtype=np.bool_, na_value=False)
    return None if values.isna().any() or member.all() or not member.any() else torch.tensor(member)
