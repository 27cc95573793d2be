"""The command ``dashboard``."""

from __future__ import annotations

from fairrf_lightning.cli.tables import print_lines
from fairrf_lightning.tracking.dashboard import fairness_workspace, save_workspace, workspace_json


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
    if json:
        print_lines(workspace_json(fairness_workspace(entity or "", project, name)))
    else:
        print_lines(save_workspace(entity, project, name))
