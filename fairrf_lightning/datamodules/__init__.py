"""Data modules: the data sets of the paper, a synthetic one, and the base for others."""

from fairrf_lightning.datamodules.adult import AdultDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.compas import COMPASDataModule
from fairrf_lightning.datamodules.loader import TensorBatches
from fairrf_lightning.datamodules.lsac import LSACDataModule
from fairrf_lightning.datamodules.streaming import StreamedBatches
from fairrf_lightning.datamodules.synthetic import SyntheticDataModule
from fairrf_lightning.datamodules.table import TableDataModule

__all__ = [
    "AdultDataModule",
    "COMPASDataModule",
    "LSACDataModule",
    "StreamedBatches",
    "SyntheticDataModule",
    "TableDataModule",
    "TabularDataModule",
    "TensorBatches",
]
