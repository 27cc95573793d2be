"""Started by test_arl_on_two_ranks.py: ARL in one or two processes; saves what it has learned."""

import argparse
import logging
from functools import partial

import torch
from lightning import Trainer, seed_everything

from fairrf_lightning.backbones import MLP
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.methods import ARLModule

GLOBAL_BATCH = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(1, verbose=False)
    module = ARLModule(backbone=partial(MLP, dropout=0.0), adversary_lr=0.1, pretrain_steps=10)
    trainer = Trainer(
        accelerator="cpu",
        devices=args.devices,
        precision="64-true",
        max_steps=50,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, SyntheticDataModule(batch_size=GLOBAL_BATCH // args.devices))
    learned = {"coefficients": module.adversary.coefficients, **module.backbone.state_dict()}
    if trainer.is_global_zero:
        torch.save(learned, args.out)


if __name__ == "__main__":
    main()
