"""Train a foreign module in two processes that the strategy starts; print what the main process has then."""

from __future__ import annotations

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.dropin.twins import Foreign, fit, make_penalty, table


class Tuples(Foreign):
    """The same for batches of tuples."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:  # type: ignore[override]
        del batch_idx
        return self.loss({"inputs": batch[0], "target": batch[1]})


def main() -> None:
    """Fit as often as asked, each time with another trainer and module, but with the same penalty."""
    rows = table()
    data = DataLoader(TensorDataset(rows["inputs"], rows["target"]), batch_size=33)
    penalty, found = make_penalty(), []
    options = {"accelerator": "cpu", "devices": 2, "strategy": sys.argv[1], "max_steps": 12}
    for _ in range(int(sys.argv[2])):
        module = Tuples()
        update = LambdaUpdateCallback(0.2, 4, penalty=penalty, module="net")
        trainer = fit(module, PretrainCallback(epochs=1), update, data=data, **options)
        logged = [float(trainer.callback_metrics[f"lambda/{name}"]) for name in penalty.feature_names]
        found.append([penalty.weights.tolist(), logged, [penalty.penalised_steps, penalty.updates]])
    print(json.dumps(found))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
