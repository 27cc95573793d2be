"""A W&B workspace that shows accuracy, gaps, lambda, penalties, groups and sweeps of a project."""

from __future__ import annotations

from typing import Any

import wandb
from wandb_workspaces import workspaces as ws
from wandb_workspaces.reports.v2.interface import (
    Config,
    CustomChart,
    LinePlot,
    ParallelCoordinatesPlot,
    ParallelCoordinatesPlotColumn,
    ParameterImportancePlot,
    RunComparer,
    ScatterPlot,
    SummaryMetric,
)

from fairrf_lightning.errors import InputError, first_line
from fairrf_lightning.tracking.wandb import GAP_LABELS, RATE_LABELS, offline_reason


def fairness_workspace(entity: str, project: str, name: str = "Fairness") -> ws.Workspace:
    """Return the workspace, not saved yet.

    Args:
        entity: User or team that the project belongs to.
        project: Project whose runs are shown.
        name: Name of the saved view.
    """
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        settings=ws.WorkspaceSettings(x_axis="epoch"),
        sections=[
            _section("Accuracy against gaps", [*_scatters(), *_run_fronts(), *_gap_paths()]),
            _section("Lambda paths", [_lines("lambda: the weight of each related feature", "^lambda/")]),
            _section("Penalties", _penalties()),
            _section("Groups", _groups()),
            _section("Sweeps", _sweeps()),
        ],
    )


def save_workspace(entity: str | None, project: str, name: str) -> str:
    """Save the workspace at W&B and return its address.

    Args:
        entity: User or team that owns the project; ``None`` for the user's own.
        project: Project whose runs are shown.
        name: Name of the saved view.

    Raises:
        InputError: If W&B cannot be reached or refuses it.
    """
    if reason := offline_reason():
        raise InputError(
            f"dashboard: a workspace cannot be saved, because {reason}; log in by: wandb login, or print the "
            "definition by --json."
        )
    try:
        workspace = fairness_workspace(entity or wandb.Api().default_entity or "", project, name)
        workspace.save()  # type: ignore[no-untyped-call]
        url: str = workspace.url
    except Exception as error:  # the client raises many kinds
        raise InputError(
            f"dashboard: W&B did not save the workspace in {entity or 'your account'}, project {project!r}: "
            f"{first_line(error)}. Check the names; the project must exist, so log a run first."
        ) from error
    return url


def workspace_json(workspace: ws.Workspace) -> str:
    """Return the definition that the server would receive, as JSON."""
    # The package has no public way to read a workspace without saving it.
    text: str = workspace._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=2)  # noqa: SLF001
    return text


def _section(name: str, panels: list[Any]) -> ws.Section:
    layout = ws.SectionLayoutSettings(columns=3, rows=max(1, -(-len(panels) // 3)))
    return ws.Section(name=name, panels=panels, is_open=True, layout_settings=layout)


def _scatters() -> list[Any]:
    """Return one point per run, on the test split."""
    return [
        ScatterPlot(
            title=f"Runs, test split: accuracy against {label}",
            x=SummaryMetric(f"test_{gap}"),
            y=SummaryMetric("test_acc"),
        )
        for gap, label in GAP_LABELS.items()
    ]


def _run_fronts() -> list[Any]:
    """Return one point per epoch, from the table at the end of each run."""
    return [_chart(f"pareto/{gap}", "scatter", {"x": f"val_{gap}", "y": "val_acc"}) for gap in GAP_LABELS]


def _chart(key: str, kind: str, fields: dict[str, str]) -> CustomChart:
    chart: CustomChart = CustomChart.from_table(
        f"{key}_table", chart_fields=fields, chart_strings={"title": key}
    )
    chart.chart_name = f"wandb/{kind}/v0"
    return chart


def _gap_paths() -> list[Any]:
    paths = {"acc": "Accuracy", **GAP_LABELS}.items()
    titles = {name: f"{label}, with its 95 % interval" for name, label in paths}
    ends = ("", "_low", "_high")
    return [LinePlot(title=titles[of], x="epoch", y=[f"val_{of}{end}" for end in ends]) for of in titles]


def _lines(title: str, pattern: str) -> LinePlot:
    return LinePlot(title=title, x="epoch", metric_regex=f"{pattern}.*")


def _penalties() -> list[Any]:
    return [
        _lines("R of each related feature", "^penalty/"),
        LinePlot(title="Penalty: eta times sum of lambda R", x="epoch", y=["train_penalty", "val_penalty"]),
        LinePlot(title="Task loss", x="epoch", y=["train_loss", "val_loss"]),
        LinePlot(title="Objective, which chooses the checkpoint", x="epoch", y=["val_objective"]),
    ]


def _groups() -> list[Any]:
    paths = [
        _lines(f"{label} by group, validation split", f"^val_{rate}/") for rate, label in RATE_LABELS.items()
    ]
    bars = [_chart(f"test_groups/{rate}", "bar", {"label": "group", "value": rate}) for rate in RATE_LABELS]
    return [*paths, *bars]


def _sweeps() -> list[Any]:
    columns: list[Config | SummaryMetric] = [Config("eta"), Config("beta"), SummaryMetric("chosen/val_acc")]
    columns += [SummaryMetric(f"chosen/val_{gap}") for gap in GAP_LABELS]
    return [
        ParallelCoordinatesPlot(
            title="Settings, and what the chosen checkpoints have on the validation split",
            columns=[ParallelCoordinatesPlotColumn(metric=column) for column in columns],
        ),
        *(
            ScatterPlot(title=f"{name} against eta", x=Config("eta"), y=SummaryMetric(f"chosen/{name}"))
            for name in ("val_acc", "val_eo_gap", "val_dp_gap")
        ),
        ParameterImportancePlot(with_respect_to="chosen/val_eo_gap"),
        RunComparer(diff_only=True),
    ]
