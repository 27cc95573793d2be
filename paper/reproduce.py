"""``python train.py reproduce``: the paper's whole evaluation on the real data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fairrf_lightning.cli.grid import check_matplotlib
from fairrf_lightning.cli.tables import print_lines, progress_bar, resumable
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.run import Job, run_jobs
from fairrf_lightning.experiments.setting import Schedule
from fairrf_lightning.experiments.workers import default_num_workers
from fairrf_lightning.report import write_report_if_installed
from paper.numbers import CASE_STUDY
from paper.plans import EPOCHS_TIMES, PARTS, STEPS, Plan, plans
from paper.report import draw_figures, reproduction_facts, write_page


def reproduce(
    *,
    only: Sequence[str] = PARTS,
    seeds: int = 5,
    epochs: int = 20,
    workers: int | None = None,
    backend: str = "loky",
    out: Path = Path("reproduction"),
) -> None:
    """Repeat the evaluation of the paper on the real data: tables, figures and claims.

    The same command resumes an interrupted run: models that are in results.csv are not trained again.

    Args:
        only: Parts to run; by default all: adult, compas, lsac, ablation, backbones, case-study,
            sensitivity.
        seeds: Number of seeds per setting.
        epochs: Number of epochs per model.
        workers: Number of processes; by default one per core if there is enough work.
        backend: Backend of joblib: loky for this machine; dask, ray or spark for a cluster.
        out: Folder of the report.
    """
    for part in only:
        if part not in PARTS:
            raise InputError(f"--only {part}: no such part; {did_you_mean(part, PARTS)}")
    if seeds < 2:
        raise InputError(f"--seeds {seeds}: expected 2 or more; an interval needs them.")
    check_matplotlib()
    results = train(only, out, list(range(seeds)), Schedule(epochs=epochs), workers=workers, backend=backend)
    draw_figures(results, out / "figures")
    make_facts = partial(reproduction_facts, results)
    names = {"page": "reproduction.html", "card": "reproduction_card.md"}
    written, hint = write_report_if_installed(make_facts, out, **names)
    print_lines(f"Wrote {', '.join(map(str, [write_page(results, out), *written]))}", *filter(None, [hint]))


def train(
    parts: Sequence[str],
    folder: Path,
    seeds: list[int],
    schedule: Schedule,
    *,
    workers: int | None = 1,
    backend: str = "loky",
) -> pd.DataFrame:
    """Return one row per model of the named parts; models in ``results.csv`` are not trained again."""
    todo = plans(parts)
    jobs = [_job(plan, seeds, schedule) for plan in todo]
    models = sum(len(job.settings) * len(seeds) for job in jobs)
    total = sum(job.work for job in jobs)
    if workers is None and backend == "loky":
        workers = default_num_workers(total)
    path = folder / "results.csv"
    with resumable(path), progress_bar(f"{models} models", total) as advance:
        frames = run_jobs(jobs, path=path, advance=advance, workers=workers, backend=backend)
    named = [_named(runs, plan) for runs, plan in zip(frames, todo, strict=True)]
    return pd.concat(named, ignore_index=True)


def _job(plan: Plan, seeds: list[int], schedule: Schedule) -> Job:
    schedule = replace(schedule, epochs=schedule.epochs * EPOCHS_TIMES.get(plan.data, 1))
    return Job(plan.make_data(), plan.settings, seeds, schedule, weight=STEPS[plan.data])


def _named(runs: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    runs = runs.assign(part=plan.part, include_sensitive=plan.include_sensitive)
    if plan.part != "case-study":
        return runs
    return runs.assign(**_correlations(plan.make_data()(seed=0), plan.data))


def _correlations(data: TabularDataModule, name: str) -> dict[str, float]:
    """Return the multiple correlation of each feature's columns with the label and with S."""
    loaders = (data.val_dataloader(), data.test_dataloader())
    batches = [batch for loader in loaders for batch in loader]
    keys = ("inputs", "target", "groups")
    inputs, target, groups = (torch.cat([batch[key] for batch in batches]).double().numpy() for key in keys)
    known = groups >= 0
    owners = data.encoder.owners
    found: dict[str, Any] = {}
    for feature in CASE_STUDY[name]:
        columns = inputs[:, owners[feature]]
        found[f"rho_y/{feature}"] = _multiple_correlation(columns, target)
        found[f"rho_s/{feature}"] = _multiple_correlation(columns[known], groups[known])
    return found


def _multiple_correlation(columns: np.ndarray, values: np.ndarray) -> float:
    centred = columns - columns.mean(0)
    fitted = centred @ np.linalg.lstsq(centred, values - values.mean(), rcond=None)[0]
    return float(fitted.std() / values.std())
