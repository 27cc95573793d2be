"""Started by test_ddp.py: 50 optimiser steps on Adult, then a test run; saves weights and metrics."""

import argparse
import logging
from functools import partial

import torch
from lightning import Trainer, seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import AdultDataModule

GLOBAL_BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--given", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(1, verbose=False)
    data = AdultDataModule(batch_size=GLOBAL_BATCH // args.devices)
    module = FairRFModule(backbone=partial(MLP, dropout=0.0), eta=0.6, given=args.given)
    trainer = Trainer(
        accelerator="cpu",
        devices=args.devices,
        precision=args.precision,
        max_steps=50,
        callbacks=[PretrainCallback(steps=5), LambdaUpdateCallback(beta=0.05, every_n_steps=10)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    weights = {name: value.cpu() for name, value in module.backbone.state_dict().items()}
    result = {"weights": weights, "lambda": module.penalty.weights, "world_size": trainer.world_size}
    metrics = trainer.test(module, data, verbose=False)[0]
    if trainer.is_global_zero:
        torch.save(result | {"metrics": metrics, "rows": data.split_sizes["test"]}, args.out)


if __name__ == "__main__":
    main()
