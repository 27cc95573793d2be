"""``python train.py dashboard --entity me --project lightning_logs``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import wandb
from jsonargparse import ArgumentParser

from fairrf_lightning.errors import InputError
from fairrf_lightning.tracking.access import first_line, obstacle
from fairrf_lightning.tracking.dashboard import fairness_workspace, workspace_json


def run_dashboard(args: Sequence[str]) -> None:
    """Save the workspace at W&B and print its address, or print its definition."""
    options = _parser().parse_args(list(args))
    if options.json:
        workspace = fairness_workspace(options.entity or "", options.project, options.name)
        sys.stdout.write(workspace_json(workspace) + "\n")
        return
    if reason := obstacle():
        raise InputError(
            f"dashboard: a workspace cannot be saved, because {reason}; "
            "log in by: wandb login, or print the definition by --json."
        )
    sys.stdout.write(f"{_save(options.entity, options.project, options.name)}\n")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="train.py dashboard",
        description="Save a W&B workspace that shows the runs of a project at a glance.",
        exit_on_error=False,
    )
    add = parser.add_argument
    add("--entity", type=str | None, default=None, help="User or team of the project; by default your own.")
    add("--project", type=str, default="lightning_logs", help="Project of the runs; that of the logger.")
    add("--name", type=str, default="Fairness", help="Name of the workspace.")
    add("--json", action="store_true", help="Only print the definition: needs no account and no network.")
    return parser


def _save(entity: str | None, project: str, name: str) -> str:
    try:
        workspace = fairness_workspace(entity or wandb.Api().default_entity or "", project, name)
        workspace.save()  # type: ignore[no-untyped-call]
        url: str = workspace.url
    except Exception as error:  # the client raises many kinds
        raise InputError(
            f"dashboard: W&B did not save the workspace in {entity or 'your account'}, project {project!r}: "
            f"{first_line(error)}. Check the names; the project has to be there, so log a run first."
        ) from error
    return url
