"""``python train.py report lightning_logs/version_0``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.results import ResultsFile, check_one_experiment
from fairrf_lightning.load import RunFolder
from fairrf_lightning.report.audit_facts import audit_facts, read_audit
from fairrf_lightning.report.certificate_facts import certificate_facts
from fairrf_lightning.report.facts import Certificate, Facts, Front
from fairrf_lightning.report.results_facts import grid_facts
from fairrf_lightning.report.run_report import run_facts
from fairrf_lightning.report.writing import write_report


def run_report(args: Sequence[str]) -> None:
    """Write the page and the model card of a run, a grid or an audit."""
    parser = ArgumentParser(prog="train.py report", description=__doc__, exit_on_error=False)
    add = parser.add_argument
    add(
        "folder",
        type=str,
        help="Folder of a run, such as lightning_logs/version_0, of a grid or of an audit.",
    )
    add("--against", type=str, default=None, help="Folder of another run, with the same data and seed.")
    add(
        "--groups",
        type=str,
        default="",
        help="Sensitive columns, such as race,sex; by default S of the data.",
    )
    add("--grid", type=str, default=None, help="Folder of a grid whose settings are drawn around the run.")
    add(
        "--certificate",
        type=str,
        default=None,
        help="What certify --output wrote; certificate.json by default.",
    )
    add("--out", type=str, default=None, help="Where to write; the folder itself by default.")
    options = parser.parse_args(list(args))
    folder = Path(options.folder)
    facts = _facts(folder, options)
    files = write_report(facts, options.out or folder)
    Console().print(f"Wrote {', '.join(map(str, files))}", highlight=False, markup=False, soft_wrap=True)


def _facts(folder: Path, options: Namespace) -> Facts:
    is_run = (folder / "config.yaml").is_file() and not (folder / "results.csv").is_file()
    for name in ("against", "groups", "grid", "certificate"):
        if folder.is_dir() and not is_run and getattr(options, name):
            raise InputError(f"--{name} belongs to the folder of a run; {folder} is none.")
    if (folder / "results.csv").is_file():
        return grid_facts(_results(folder))
    if (folder / "audit.json").is_file() and not (folder / "config.yaml").is_file():
        return audit_facts(read_audit(folder / "audit.json"))
    run = RunFolder(folder)
    front = None if options.grid is None else _front(options.grid)
    against = None if options.against is None else RunFolder(options.against)
    groups = [name.strip() for name in options.groups.strip("[] ").split(",") if name.strip()]
    return run_facts(run, front, _certificate(run, options.certificate), against, groups)


def _certificate(run: RunFolder, named: str | None) -> Certificate | None:
    path = run.path / "certificate.json" if named is None else Path(named)
    if named is None and not path.is_file():
        return None
    return certificate_facts(path, run.best_checkpoint)


def _results(folder: Path) -> pd.DataFrame:
    results = ResultsFile(folder / "results.csv").frame
    if len(set(results["data"])) > 1:
        raise InputError(f"{folder}: its results are of several data sets; reproduce writes their report.")
    check_one_experiment(results, folder)
    return results


def _front(folder: str) -> Front:
    if not (Path(folder) / "results.csv").is_file():
        raise InputError(f"--grid {folder}: no results.csv in it; grid writes one.")
    fronts = grid_facts(_results(Path(folder))).fronts
    if not fronts:
        raise InputError(
            f"--grid {folder}: its data do not say which group a row belongs to: no gaps to draw."
        )
    return fronts[0]
