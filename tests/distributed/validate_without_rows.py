"""Started by test_rank_without_rows.py: validates and fits two validation rows on one rank and on three."""

import logging
import sys
from pathlib import Path

import torch
from lightning import Trainer, seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import TableDataModule

ROWS = "age,zip,sex,hired\n" + "\n".join(f"{n * n % 7},{n},{'fm'[n % 2]},{n % 3 % 2}" for n in range(10))
PRECISIONS = ("64-true", "bf16-true")


def main(out: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    Path("people.csv").write_text(ROWS)
    torch.save(
        {precision: [metrics(devices, precision) for devices in (1, 3)] for precision in PRECISIONS}, out
    )


def metrics(devices: int, precision: str) -> dict[str, float]:
    seed_everything(0, verbose=False)
    data = TableDataModule(
        "people.csv", target="hired", related=["age"], sensitive="sex", split=(0.6, 0.2, 0.2), seed=0
    )
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp_fork" if devices > 1 else "auto",
        devices=devices,
        precision=precision,  # type: ignore[arg-type]
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    untrained = trainer.validate(FairRFModule(eta=0.5), data, verbose=False)[0]
    assert data.split_sizes["val"] == 2
    trainer.fit(FairRFModule(eta=0.5), data)
    assert trainer.callback_metrics["val_objective"].isfinite()
    return dict(untrained)


if __name__ == "__main__":
    main(sys.argv[1])
