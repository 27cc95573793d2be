"""Data modules: the data sets of the paper, a synthetic one, and the base for others."""

from fairrf_lightning.datamodules.adult import AdultDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.compas import COMPASDataModule
from fairrf_lightning.datamodules.loader import TensorBatches
from fairrf_lightning.datamodules.lsac import LSACDataModule
from fairrf_lightning.datamodules.synthetic import SyntheticDataModule

__all__ = [
    "AdultDataModule",
    "COMPASDataModule",
    "LSACDataModule",
    "SyntheticDataModule",
    "TabularDataModule",
    "TensorBatches",
]
