"""Many models as one: settings times seeds, trained as stacks.

``grid`` and ``sweep`` are the analyses. A ``setting`` holds the options of a model. ``run`` sorts models into
stacks, which ``workers`` train in parallel; a ``stack`` trains its models as one ``stacked_module``.
``results`` keeps one row per model, and ``choose`` picks a setting. A sweep draws settings from a ``space``
and keeps its trials in a ``study``.
"""

from fairrf_lightning.experiments.choose import Recommendation, recommend, summarise
from fairrf_lightning.experiments.grid import GridResult, grid
from fairrf_lightning.experiments.run import run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.experiments.stack import Stack
from fairrf_lightning.experiments.stacked_module import StackedModule

__all__ = [
    "GridResult",
    "Recommendation",
    "Schedule",
    "Setting",
    "Stack",
    "StackedModule",
    "grid",
    "recommend",
    "run_settings",
    "summarise",
]
