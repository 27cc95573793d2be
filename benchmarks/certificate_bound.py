"""Tightness of the certified bound on dDP: bounds and the truth, on the test rows of Adult and COMPAS.

python benchmarks/certificate_bound.py             # a few minutes; prints two Markdown tables
"""

from __future__ import annotations

import argparse
import logging
import warnings
from itertools import chain

import numpy as np
import torch
from lightning import Trainer, seed_everything
from torch import Tensor

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.certificate import gap_bound
from fairrf_lightning.certificate.bound import Box, box_bound, population_bound, standardise
from fairrf_lightning.certificate.knowledge import sample_box
from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.presets import recommended


def fitted(data: TabularDataModule, eta: float, epochs: int) -> FairRFModule:
    """Train as the command line does, but keep the last weights."""
    seed_everything(0, verbose=False)
    module = FairRFModule(eta=eta)
    trainer = Trainer(
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[
            PretrainCallback(epochs=1),
            LambdaUpdateCallback(beta=recommended(type(data), {})["beta"]),
        ],
    )
    trainer.fit(module, data)
    return module.eval()


def gap(preds: Tensor, sensitive: Tensor) -> float:
    """Return the difference of the means."""
    return float(preds[sensitive > 0].mean() - preds[sensitive == 0].mean())


def exact_line(name: str, preds: Tensor, columns: Tensor, sensitive: Tensor) -> str:
    """Return the line of the first table: correlations and share are known."""
    joint = np.corrcoef(np.column_stack([columns.numpy(), sensitive.numpy()]).T)
    a = torch.from_numpy(joint[-1, :-1].copy())
    known = gap_bound(preds, columns, a, float(sensitive.mean()))
    by = known.by_method
    return (
        f"| {name} | {gap(preds, sensitive):+.3f} | {by['share']:.3f} | {by['paper']:.3f} "
        f"| {by['tight']:.3f} | **{by['binary']:.3f}** | {known.low:+.3f} to {known.high:+.3f} |"
    )


def sampled_line(
    name: str, preds: Tensor, columns: Tensor, sensitive: Tensor, *, size: int, draws: int
) -> str:
    """Return the line of the second table: they are estimated from a sample of the rows."""
    truth = gap(preds, sensitive)
    values, table, groups = preds.numpy(), columns.numpy(), sensitive.numpy()
    standard, varies = standardise(table)
    bounds, limits, widths = [], [], []
    for seed in range(draws):
        rows = np.random.default_rng(seed).choice(len(values), size, replace=False)
        box, share = sample_box(table[rows], groups[rows], 0.96, seed)
        bounds.append(box_bound(values, standard, Box(box.low[varies], box.high[varies]), share))
        limits.append(population_bound(values, table, box, share) or 1.0)
        parts = [values[rows][groups[rows] == group] for group in (0, 1)]
        direct = abs(parts[1].mean() - parts[0].mean())
        widths.append(direct + 1.96 * np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts)))
    held = sum(bound.low <= truth <= bound.high for bound in bounds)
    return (
        f"| {name} | {size} | {abs(truth):.3f} | {np.mean([one.bound for one in bounds]):.3f} "
        f"| {held} of {draws} | {np.mean(limits):.3f} | {np.mean(widths):.3f} |"
    )


def main() -> None:
    """Train four models and print how their bounds compare with the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    exact, sampled = [], []
    for make in (AdultDataModule, COMPASDataModule):
        data = make(seed=0)
        for method, eta in (("vanilla", 0.0), ("FairRF", recommended(type(data), {})["eta"])):
            module = fitted(data, eta, options.epochs)
            batches = list(data.rows_of("test"))
            inputs, groups = (torch.cat([batch[key] for batch in batches]) for key in ("inputs", "groups"))
            with torch.no_grad():
                probabilities = module.penalty.probabilities(module(inputs)).double()
            columns = inputs[:, list(chain(*data.related_columns.values()))].double()
            sensitive = (groups == 0).double()
            decisions = (probabilities >= 0.5).double()
            for mode, preds in (("probabilities", probabilities), ("decisions", decisions)):
                exact.append(exact_line(f"{data.name} {method}, {mode}", preds, columns, sensitive))
            if data.name == "compas":  # the two groups of the paper, the other rows left out
                two = groups >= 0
                name = f"compas {method}, probabilities, two groups"
                exact.append(exact_line(name, probabilities[two], columns[two], sensitive[two]))
            for size in (300, 1000):
                args = (f"{data.name} {method}", probabilities, columns, sensitive)
                sampled.append(sampled_line(*args, size=size, draws=options.draws))
    print("| test rows | true gap | share only | paper | tight | binary S | certain interval |")
    print("|---|---|---|---|---|---|---|", *exact, sep="\n")
    print("\n| probabilities | sample | dDP | bound | held | population | direct |")
    print("|---|---|---|---|---|---|---|", *sampled, sep="\n")


if __name__ == "__main__":
    main()
