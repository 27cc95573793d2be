from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning import seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import FairRFModule, InputError
from fairrf_lightning.callbacks import CorrectionCallback
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.load import load_run
from fairrf_lightning.metrics.counts import GAPS, GroupCounts
from tests.dropin.test_side_channel import Strict
from tests.surveys import survey_of
from tests.trainers import quiet_trainer


@pytest.fixture(scope="module")
def data() -> SyntheticDataModule:
    made = SyntheticDataModule(n_rows=6000, seed=0)
    made.setup()
    return made


def dp_gap(preds: Tensor, rows: dict[str, Tensor]) -> float:
    return float(GroupCounts.of(preds, rows["target"], rows["groups"], 2).gap(GAPS["dp_gap"]))


def test_module_is_corrected_at_the_end_of_fit(data: SyntheticDataModule, tmp_path: Path) -> None:
    seed_everything(0, verbose=False)
    callback = CorrectionCallback(survey_of(data, 400), goal="dp=0.10", max_accuracy_loss=0.1)
    module = FairRFModule(backbone="linear", eta=0.0, lr=0.05)
    trainer = quiet_trainer(callbacks=callback, max_epochs=3)
    trainer.fit(module, datamodule=data)
    assert module.correction is callback.correction is not None
    (rows,) = data.rows_of("test")
    with torch.no_grad():
        plain, corrected = module.backbone(rows["inputs"]).sigmoid(), module(rows["inputs"]).sigmoid()
    assert dp_gap(plain, rows) > 0.25
    assert dp_gap(corrected, rows) == pytest.approx(0.10, abs=0.06)
    assert torch.equal(callback.decide(plain, rows["inputs"]), (corrected >= 0.5).long())
    trainer.save_checkpoint(tmp_path / "corrected.ckpt")
    restored = load_run(tmp_path / "corrected.ckpt").module
    with torch.no_grad():
        assert torch.allclose(restored(rows["inputs"]).sigmoid(), corrected, atol=1e-6)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, datamodule=data)  # trains without the correction, then corrects again
    assert module.correction is callback.correction is not None


def test_foreign_module_keeps_its_outputs(data: SyntheticDataModule) -> None:
    seed_everything(0, verbose=False)
    loaders = []
    for part in ("train", "val"):
        (rows,) = data.rows_of(part)
        loaders.append(DataLoader(TensorDataset(rows["inputs"], rows["target"]), batch_size=512))
    known = nn.Linear(data.n_features, 1)  # any function of the inputs, such as another team's model
    (rows,) = data.rows_of("train")
    optimizer = torch.optim.LBFGS(known.parameters(), max_iter=50)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(
            known(rows["inputs"]).squeeze(1), rows["groups"].float()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    callback = CorrectionCallback(
        membership=lambda inputs: known(inputs).squeeze(1).sigmoid(), goal="dp=0.05", max_accuracy_loss=0.1
    )
    module = Strict()
    quiet_trainer(callbacks=callback, max_epochs=10).fit(module, loaders[0], loaders[1])
    (test,) = data.rows_of("test")
    with torch.no_grad():
        probs = module(test["inputs"]).squeeze(1).sigmoid()
        decisions = callback.decide(probs, test["inputs"])
    assert dp_gap(probs, test) > 0.25
    assert dp_gap(decisions, test) == pytest.approx(0.05, abs=0.05)


def test_sources_that_cannot_be_used(data: SyntheticDataModule) -> None:
    with pytest.raises(InputError, match="give one of survey, proxies, column and membership"):
        CorrectionCallback()
    module = FairRFModule(backbone="linear", eta=0.0)
    with pytest.raises(InputError, match=r"no\.csv cannot be read"):
        quiet_trainer(callbacks=CorrectionCallback("no.csv"), max_epochs=1).fit(module, datamodule=data)
    assert not any(weight.grad is not None for weight in module.parameters())  # before training
    callback = CorrectionCallback(survey_of(data, 400))
    with pytest.raises(InputError, match="For other modules, give membership"):
        quiet_trainer(callbacks=callback, max_epochs=1).fit(Strict(), datamodule=data)
