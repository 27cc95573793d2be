"""Data modules: the data sets of the paper, and the base for others."""

from fairrf_lightning.datamodules.adult import AdultDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.loader import TensorBatches

__all__ = ["AdultDataModule", "TabularDataModule", "TensorBatches"]
