"""The command ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fairrf_lightning.audit import audit, score_checkpoint
from fairrf_lightning.audit.result import read_audit
from fairrf_lightning.certificate import Certificate
from fairrf_lightning.checkpoints import weights_digest
from fairrf_lightning.cli.errors import explain
from fairrf_lightning.cli.tables import print_lines
from fairrf_lightning.errors import DivergedError, InputError
from fairrf_lightning.experiments.results import ResultsFile, check_one_experiment
from fairrf_lightning.load import EvaluatedRows, RunFolder, evaluate, load_run
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.report.audit import audit_facts
from fairrf_lightning.report.facts import Dependence, Facts, Front
from fairrf_lightning.report.grids import grid_facts
from fairrf_lightning.report.page import write_report
from fairrf_lightning.report.run import RunAudit, check_finite, run_facts


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
    found = Certificate.read(path)
    # By weights, not by name: the best checkpoints of two runs often have the same name.
    if run.checkpoint and weights_digest(run.checkpoint["state_dict"]) != found.model.get("weights"):
        raise InputError(
            f"{path}: this certificate is about another model than {run.best_checkpoint}: run certify "
            "--output with that checkpoint, or remove the file."
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
