"""The bound against the truth: models trained on Adult and COMPAS, on their test rows."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from lightning import Trainer, seed_everything

from fairrf_lightning import FairRFModule
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.certificate.audit_sample import sample_box
from fairrf_lightning.certificate.certify import certify
from fairrf_lightning.certificate.dual import Box
from fairrf_lightning.certificate.proxies import Proxies
from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule
from fairrf_lightning.datamodules.base import TabularDataModule


def fitted(data: TabularDataModule, eta: float) -> FairRFModule:
    seed_everything(0, verbose=False)
    module = FairRFModule(eta=eta)
    trainer = Trainer(
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.5, every_n_steps=5)],
    )
    trainer.fit(module, data)
    return module.eval()


@pytest.mark.parametrize("eta", [0.0, 0.6], ids=["vanilla", "fairrf"])
@pytest.mark.parametrize("make", [AdultDataModule, COMPASDataModule])
def test_bounds_hold_on_test_rows(make: type[TabularDataModule], eta: float) -> None:
    data = make(seed=0)
    module = fitted(data, eta)
    rows = {key: torch.cat([batch[key] for batch in data.rows_of("test")]) for key in ("inputs", "groups")}
    with torch.no_grad():
        probabilities = module.penalty.probabilities(module(rows["inputs"]))
    # Female against Male, African-American against all others
    sensitive = (rows["groups"] == 0).double()
    columns = rows["inputs"][:, list(chain(*data.related_columns.values()))].double()
    joint = np.corrcoef(np.column_stack([columns.numpy(), sensitive.numpy()]).T)
    a, q = joint[-1, :-1], float(sensitive.mean())
    names = [f"column {number}" for number in range(len(a))]
    exact = Proxies(names, Box(a, a), (q, q), "first group", "the rows")
    drawn = np.random.default_rng(0).choice(len(columns), 300, replace=False)
    box, share = sample_box(columns.numpy()[drawn], sensitive.numpy()[drawn])
    sampled = Proxies(names, box, share, "first group", "a sample", level=0.96)
    for known in (exact, sampled):
        found = certify(probabilities, columns, known, sensitive=sensitive)
        for mode, bound in found.rows.items():
            truth = found.measured[mode]
            assert bound.low <= truth <= bound.high
            assert abs(truth) <= bound.bound <= bound.by_method["tight"] <= bound.by_method["paper"]
            limit = found.population[mode]
            assert limit is not None
            assert limit >= abs(truth)
    assert found.rows["prob"].bound < found.rows["prob"].by_method["share"]
