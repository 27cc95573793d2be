"""Fair classifiers without the sensitive attribute, for PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairrf_lightning.errors import InputError

if TYPE_CHECKING:
    from fairrf_lightning.module import FairRFModule
    from fairrf_lightning.penalty import RelatedFeaturePenalty
    from fairrf_lightning.related import Categorical

    __version__: str

__all__ = ["Categorical", "FairRFModule", "InputError", "RelatedFeaturePenalty"]
_LAZY = {"Categorical": "related", "FairRFModule": "module", "RelatedFeaturePenalty": "penalty"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import torch and Lightning when they are needed, so ``--help`` answers at once."""
        if name in _LAZY:
            globals()[name] = found = getattr(import_module(f"fairrf_lightning.{_LAZY[name]}"), name)
            return found
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - slow for --help

            return version("fairrf-lightning")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
