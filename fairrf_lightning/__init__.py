"""Fair classifiers without the sensitive attribute, for PyTorch Lightning."""

from importlib.metadata import version

from fairrf_lightning.errors import InputError
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.penalty import RelatedFeaturePenalty

__version__ = version("fairrf-lightning")
__all__ = ["FairRFModule", "InputError", "RelatedFeaturePenalty"]
