"""Many models as one: settings times seeds, trained as stacks."""

from fairrf_lightning.experiments.choose import Recommendation, recommend, summarise
from fairrf_lightning.experiments.run import run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.experiments.stack import Stack
from fairrf_lightning.experiments.stacked_module import StackedModule

__all__ = [
    "Recommendation",
    "Schedule",
    "Setting",
    "Stack",
    "StackedModule",
    "recommend",
    "run_settings",
    "summarise",
]
