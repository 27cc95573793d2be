"""Many models as one: settings times seeds, trained as stacks."""

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
