"""The commands ``suggest``, ``certify``, ``report``, ``dashboard`` and ``to_parquet``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import torch
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from rich.console import Console
from rich.progress import Progress

from fairrf_lightning.audit import audit, score_checkpoint
from fairrf_lightning.audit.result import read_audit
from fairrf_lightning.certificate import Certificate, certify
from fairrf_lightning.certificate.knowledge import knowledge_template
from fairrf_lightning.checkpoints import load_checkpoint, weights_digest
from fairrf_lightning.cli.errors import explain
from fairrf_lightning.cli.parsing import DataOptions, DataOverrides, takes_options_of
from fairrf_lightning.cli.short_names import split_options
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.datamodules.files import csv_to_parquet
from fairrf_lightning.errors import DivergedError, InputError, check_output, writing_file
from fairrf_lightning.experiments.results import ResultsFile, check_one_experiment
from fairrf_lightning.files import write_text
from fairrf_lightning.load import EvaluatedRows, Run, RunFolder, check_two_classes, evaluate, load_run
from fairrf_lightning.messages import install_command, quiet_lightning, shell_command
from fairrf_lightning.report.facts import Dependence, Facts, Front
from fairrf_lightning.report.page import write_report
from fairrf_lightning.report.run import RunAudit, check_finite, run_facts
from fairrf_lightning.report.sources import audit_facts, grid_facts
from fairrf_lightning.suggest import suggest


@takes_options_of(certify, "source")
def certify_command(
    checkpoint: Path,
    *,
    data: DataOverrides,
    template: Path | None = None,
    output: Path | None = None,
    trust: Sequence[str] = (),
    **options: Any,
) -> None:
    """Bound the gap between groups that were never observed.

    Args:
        checkpoint: Checkpoint or folder of a run.
        data: Options of the data that differ from those in training, such as --data.path new.csv.
        template: Write a file for --proxies with the related columns, to be filled in, and stop.
        output: JSON file to write the certificate to.
        trust: Import paths of your own classes that the checkpoint may use.
        options: Passed on to ``certify``.
    """
    if template is None and (options["proxies"] is None) == (options["audit_sample"] is None):
        raise InputError(
            "certify needs knowledge about S: name either --proxies or --audit_sample; "
            "--template FILE writes a file for --proxies."
        )
    for name, path in (("output", output), ("template", template)):
        if path is not None:
            check_output(f"--{name}", path, "certificate.json")
    run = data.load(checkpoint, trust)
    check_two_classes(run)
    if template is not None:
        _write_template(run, template)
        return
    found = certify(run, **options)
    print_certificate(found)
    if output is not None:
        with writing_file("--output", output):
            write_text(output, json.dumps(found.to_dict(), indent=2) + "\n")


def print_certificate(certificate: Certificate) -> None:
    """Print the knowledge about S, the bounds and the statements."""
    known = certificate.knowledge
    together = "" if known.level is None else f" (all intervals together: {known.level:.0%})"
    print_table(
        certificate.knowledge_table(), title=f"Known about '{known.group}' from {known.source}{together}"
    )
    print_table(certificate.bounds_table(), title="Largest possible dDP (demographic parity gap)", digits=3)
    print_lines(*certificate.statements())


def _write_template(run: Run, path: Path) -> None:
    """Write a file for ``--proxies`` with the widest limits; an existing file is kept."""
    if path.exists():
        print_lines(f"{path} exists already; it was not changed.")
        return
    names, related = run.data.feature_names, run.data.related_columns
    if run.data.penalty_columns is None and related:
        names = [names[column] for columns in related.values() for column in columns]
    with writing_file("--template", path):
        write_text(path, knowledge_template(names))
    print_lines(f"Wrote {path}: replace the limits by what you know about S, and name it by --proxies.")


@takes_options_of(suggest, "data")
def suggest_command(data: DataOptions, **options: Any) -> None:
    """Rank columns by their association with S and the label, and propose related features.

    Args:
        data: Data set.
        options: Passed on to ``suggest``.
    """
    found = suggest(data.make(), **options)
    both = f"{found.sensitive} and {found.target}" if found.sensitive else found.target
    print_table(found.table(), title=f"Association of columns with {both}, 95 % intervals")
    print_lines(*found.statements())
    if found.related:
        named = found.sensitive if found.is_input else None
        print_lines(f"Train with them: {fit_command(data.args, found.related, named)}")


def fit_command(args: Sequence[str], related: Sequence[str], sensitive: str | None = None) -> str:
    """Return the command that trains on the same data with these related features.

    Args:
        args: The options of the data, as they were typed.
        related: The related features.
        sensitive: A column of the data that holds S and is not marked as S by the options.
    """
    related_options = ("--data.related", "--data.init_args.related")
    options = split_options(list(args))
    kept = [arg for key, _, typed in options if key not in related_options for arg in typed]
    kept += [] if sensitive is None else [f"--data.sensitive={sensitive}"]
    return shell_command("fit", *kept, f"--data.related={json.dumps(list(related), ensure_ascii=False)}")


def report_command(
    folder: Path,
    *,
    against: Path | None = None,
    groups: Sequence[str] = (),
    grid: Path | None = None,
    certificate: Path | None = None,
    out: Path | None = None,
    trust: Sequence[str] = (),
) -> None:
    """Write report.html and model_card.md for a run, a grid or an audit.

    Args:
        folder: Folder of a run, such as lightning_logs/version_0, of a grid or of an audit; or a checkpoint.
        against: Folder of another run with the same data and seed, to compare with.
        groups: Sensitive columns, such as race,sex. By default the sensitive attribute of the data.
        grid: Folder of a grid whose settings are drawn around the run.
        certificate: File written by certify --output. By default certificate.json in the folder.
        out: Folder to write to. By default the folder itself; for a checkpoint, one of its name.
        trust: Import paths of your own classes that the checkpoint uses.
    """
    given = {"against": against, "groups": groups, "grid": grid, "certificate": certificate}
    is_grid = (folder / "results.csv").is_file()
    is_run = (folder / "config.yaml").is_file() and not is_grid
    for name, value in given.items():
        if value and folder.is_dir() and not is_run:
            raise InputError(f"--{name} needs the folder of a run, which {folder} is not.")
    if is_grid:
        facts = grid_facts(_results(folder))
    elif (folder / "audit.json").is_file() and not is_run:
        facts = audit_facts(read_audit(folder / "audit.json"))
    else:
        facts = _run(RunFolder(folder), against, groups, grid, certificate, trust=trust)
    files = write_report(facts, out or (folder.with_suffix("") if folder.is_file() else folder))
    print_lines(f"Wrote {', '.join(map(str, files))}")


def dashboard_command(
    entity: str | None = None, project: str = "lightning_logs", name: str = "Fairness", *, json: bool = False
) -> None:
    """Save a W&B workspace that shows the runs of a project.

    Args:
        entity: User or team that owns the project. By default your own.
        project: Project of the runs, as given to the logger.
        name: Name of the workspace.
        json: Only print the definition, which needs no account and no network.
    """
    try:
        from fairrf_lightning.tracking.dashboard import (  # noqa: PLC0415 - optional packages
            fairness_workspace,
            save_workspace,
            workspace_json,
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"dashboard needs the package {error.name}; run: {install_command('wandb')}"
        ) from error
    if json:
        print_lines(workspace_json(fairness_workspace(entity or "", project, name)))
    else:
        print_lines(save_workspace(entity, project, name))


def _run(
    run: RunFolder,
    against: Path | None,
    groups: Sequence[str],
    grid: Path | None,
    certificate: Path | None,
    *,
    trust: Sequence[str],
) -> Facts:
    check_finite(run)
    other = None if against is None else RunFolder(against)
    front = None if grid is None else _front(grid)
    found = _evaluated(run, other, groups, trust)
    classes = (found.audit or {}).get("num_classes", 2)
    for option, value in (("grid", grid), ("certificate", certificate)):
        if classes > 2 and value is not None:
            raise InputError(
                f"--{option} {value}: for models of two classes, but {run.path} has {classes}; leave it out."
            )
    return run_facts(run, found, against=other, front=front, certificate=_certificate(run, certificate))


def _evaluated(
    run: RunFolder, against: RunFolder | None, groups: Sequence[str], trust: Sequence[str]
) -> RunAudit:
    """Evaluate the run's checkpoint on its test rows, and that of another run on the same rows."""
    try:
        rows = _evaluate(run, groups, trust)
    except DivergedError:  # there is nothing to report
        raise
    except (InputError, MisconfigurationException, ArgumentError, OSError, ValueError) as error:
        if against is not None or groups or run.named_checkpoint is not None:
            raise  # the logged metrics are those of another model, or of other groups
        return RunAudit(reason=f"The checkpoint could not be evaluated again: {explain(error)}")
    others = None if against is None else _evaluate(against, groups, trust)
    models = [rows] if others is None else [rows, others]
    result = audit(score_checkpoint(rows, others)).to_dict()
    values = [_penalties(of) for of in models]
    dependences = [
        Dependence(name, value, values[1].get(name) if len(values) > 1 else None)
        for name, value in values[0].items()
    ]
    return RunAudit(result, dependences)


def _evaluate(run: RunFolder, groups: Sequence[str], trust: Sequence[str]) -> EvaluatedRows:
    with quiet_lightning():
        found = load_run(run.named_checkpoint or run.path, trust=trust)
        return evaluate(found, attributes=groups, several_classes=True)


@torch.no_grad()
def _penalties(rows: EvaluatedRows) -> dict[str, float]:
    """Return the penalty R of each related feature on the evaluated rows."""
    penalty = rows.run.module.penalty
    values = penalty.penalties(penalty.moments(rows.probabilities, rows.related_matrix, rows.target))
    return dict(zip(penalty.feature_names, values.tolist(), strict=True))


def _certificate(run: RunFolder, named: Path | None) -> Certificate | None:
    path = named or run.path / "certificate.json"
    if named is None and not path.is_file():
        return None
    found, checkpoint = Certificate.read(path), run.best_checkpoint
    weights = None if checkpoint is None else weights_digest(load_checkpoint(checkpoint)["state_dict"])
    # By weights, not by name: the best checkpoints of two runs often have the same name.
    if weights is not None and weights != found.model.get("weights"):
        raise InputError(
            f"{path}: this certificate is about another model than {checkpoint}: run certify --output with "
            "that checkpoint, or remove the file."
        )
    return found


def _results(folder: Path) -> pd.DataFrame:
    results = ResultsFile(folder / "results.csv").frame
    if len(set(results["data"])) > 1:
        raise InputError(f"{folder}: its results are of several data sets; reproduce writes their report.")
    check_one_experiment(results, folder)
    return results


def _front(folder: Path) -> Front:
    if not (folder / "results.csv").is_file():
        raise InputError(f"--grid {folder}: no results.csv in it; grid writes one.")
    fronts = grid_facts(_results(folder)).fronts
    if not fronts:
        raise InputError(f"--grid {folder}: its data have no groups, so there are no gaps to draw.")
    return fronts[0]


@takes_options_of(csv_to_parquet, "path", "out", "progress")
def to_parquet_command(path: Path, out: Path, **options: Any) -> None:
    """Convert a CSV file of any size to a directory of Parquet files, which training streams.

    Args:
        path: CSV file, which may be compressed by gzip.
        out: Directory to write to; it must not hold Parquet files yet.
        options: Passed on to ``csv_to_parquet``.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name)
        written = csv_to_parquet(
            path,
            out,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **options,
        )
    rows = pq.read_metadata(written).num_rows
    print(f"{rows:,} rows are in {out}. Train on them: --data table --data.path {quote(str(out))}")  # noqa: T201
