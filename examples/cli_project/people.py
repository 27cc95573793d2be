"""The project's data: made here, so that the example runs anywhere."""

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

Loader = DataLoader[tuple[Tensor, ...]]


class People(LightningDataModule):
    """Rows of six columns; the first two, age and children, lead to the label.

    Args:
        rows: Number of training rows.
        batch_size: Rows in a batch.
    """

    def __init__(self, rows: int = 4000, batch_size: int = 100) -> None:
        super().__init__()
        self.rows = rows
        self.batch_size = batch_size

    def _loader(self, seed: int, *, shuffle: bool) -> Loader:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(self.rows, 6, generator=generator)
        noise = torch.randn(self.rows, generator=generator)
        label = (rows @ torch.tensor([1.0, 0.7, 0.0, 1.0, 0.5, 0.0]) + noise > 0).long()
        return DataLoader(TensorDataset(rows, label), self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> Loader:
        """Return the training rows."""
        return self._loader(1, shuffle=True)

    def val_dataloader(self) -> Loader:
        """Return the validation rows."""
        return self._loader(2, shuffle=False)
