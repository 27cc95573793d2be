"""Membership as a column that only the penalty sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import SyntheticDataModule, TableDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import evaluate, load_run
from tests.surveys import write_survey

PROXIES = "share: 0.5\ncorrelations:\n  {name}: 0.5\n"
QUICK = "--trainer.max_epochs 1 --data.n_rows 2000 --data.seed 0 --trainer.logger false"


def test_covariance_with_the_column_is_the_gap(tmp_path: Path) -> None:
    path = write_survey(SyntheticDataModule(n_rows=4000, seed=0), 2000, tmp_path / "survey.csv")
    data = SyntheticDataModule(n_rows=4000, seed=0, membership=str(path))
    assert data.related_columns == {"membership": [0]}
    (rows,) = list(data.rows_of("train"))
    decisions = (rows["inputs"].sum(1) > 0).double()
    column, groups = rows["related"][:, 0].double(), rows["groups"]
    found = ((column - column.mean()) * (decisions - decisions.mean())).mean()
    gap = decisions[groups == 1].mean() - decisions[groups == 0].mean()
    assert float(gap) > 0.1
    assert float(found) == pytest.approx(float(gap), abs=0.04)


def test_column_of_the_table_is_no_input(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=300), "p": rng.random(300), "y": rng.integers(0, 2, 300)})
    table.to_csv(tmp_path / "t.csv", index=False)
    data = TableDataModule(str(tmp_path / "t.csv"), target="y", membership="p", seed=0)
    assert data.feature_names == ["x"]
    (rows,) = list(data.rows_of("train"))
    share = table["p"].iloc[rows["row"].numpy()].mean()
    expected = (table["p"].iloc[rows["row"].numpy()] - share) / (share * (1 - share))
    torch.testing.assert_close(
        rows["related"][:, 0].double(), torch.tensor(expected.to_numpy()), atol=1e-5, rtol=0
    )
    again = TableDataModule(str(tmp_path / "t.csv"), seed=1, membership="p")
    again.load_state_dict(data.state_dict())
    assert again.state_dict() == data.state_dict()
    torch.testing.assert_close(next(iter(again.rows_of("train")))["related"], rows["related"])
    with pytest.raises(InputError, match="column 'x' has cells that are no probabilities"):
        TableDataModule(str(tmp_path / "t.csv"), target="y", membership="x", seed=0).setup()


def test_a_run_needs_no_survey_once_it_is_trained(cli: Callable[[str], None], tmp_path: Path) -> None:
    path = write_survey(SyntheticDataModule(n_rows=2000, seed=0), 300, tmp_path / "survey.csv")
    quick = QUICK.replace("--trainer.logger false", "")
    cli(f"fit --data synthetic --data.membership survey.csv {quick}")
    cli("report lightning_logs/version_0 --out page")
    card = Path("page/model_card.md").read_text("utf-8")
    assert "membership in the groups, from a survey" in card
    assert "named by the user" not in card
    path.unlink()
    checkpoint = next(Path("lightning_logs").rglob("best.ckpt"))
    cli(f"test --ckpt_path {checkpoint}")
    rows = evaluate(load_run(checkpoint))
    assert rows.related is not None
    assert rows.data.related_columns == {"membership": [0]}
    state = load_run(checkpoint).data.state_dict()["membership"]["estimate"]
    labelled = {"label_coefficients", "label_share"}
    assert set(state) == {"coefficients", "share", "_extra_state"} | labelled
    assert set(state["_extra_state"]) == {"source", "group_names", "digest"}
    assert np.shape(state["coefficients"])[:2] == (5, 1)  # folds, not people


def test_among_positives_covariance_with_the_column_is_dEO(tmp_path: Path) -> None:  # noqa: N802
    path = write_survey(SyntheticDataModule(n_rows=8000, seed=0), 3000, tmp_path / "survey.csv")
    data = SyntheticDataModule(n_rows=8000, seed=0, membership=str(path))
    module = FairRFModule(backbone="linear", given="positives", eta=1.0)
    module.adapt_to(data)
    (rows,) = list(data.rows_of("train"))
    with torch.no_grad():
        penalty = float(module.penalty(module(rows["inputs"]), rows["related"], rows["target"]))
        probs = module(rows["inputs"]).sigmoid()
    mean = [float(probs[(rows["target"] == 1) & (rows["groups"] == group)].mean()) for group in (0, 1)]
    assert abs(mean[1] - mean[0]) > 0.02
    assert penalty == pytest.approx(abs(mean[1] - mean[0]), rel=0.15)
    chosen = rows["related"]
    module = FairRFModule(backbone="linear", given="all")
    module.adapt_to(data)
    assert not torch.allclose(next(iter(data.rows_of("train")))["related"], chosen, atol=0.1)


def test_a_run_for_equal_opportunity_restores_its_column(cli: Callable[[str], None], tmp_path: Path) -> None:
    path = write_survey(SyntheticDataModule(n_rows=2000, seed=0), 300, tmp_path / "survey.csv")
    options = QUICK.replace("--trainer.logger false", "--model.given positives")
    cli(f"fit --data synthetic --data.membership survey.csv {options}")
    fresh = SyntheticDataModule(n_rows=2000, seed=0, membership=str(path))
    fresh.penalise_positives(positives=True)
    expected = next(iter(fresh.rows_of("test")))["related"]
    found = evaluate(load_run(next(Path("lightning_logs").rglob("best.ckpt")))).related
    assert found is not None
    torch.testing.assert_close(found, expected)


def test_statistics_do_not_serve_equal_opportunity(
    cli: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name = SyntheticDataModule(n_rows=200, seed=0).feature_names[0]
    Path("proxies.yaml").write_text(PROXIES.format(name=name), encoding="utf-8")
    for command in (
        f"fit --data synthetic --data.membership proxies.yaml --model.given positives {QUICK}",
        "grid --data synthetic --data.membership proxies.yaml --given positives --plot false --workers 1",
    ):
        with pytest.raises(SystemExit):
            cli(command)
        assert "from a YAML file says nothing about the positives" in capsys.readouterr().err
    data = SyntheticDataModule(n_rows=200, seed=0, membership="proxies.yaml")
    for _ in range(2):  # a second attempt, as in a notebook, must not go on without membership
        with pytest.raises(InputError, match="says nothing about the positives"):
            FairRFModule(given="positives").adapt_to(data)


def test_published_statistics_serve_as_well(cli: Callable[[str], None]) -> None:
    name = SyntheticDataModule(n_rows=200, seed=0).feature_names[0]
    Path("proxies.yaml").write_text(PROXIES.format(name=name), encoding="utf-8")
    cli(f"fit --data synthetic --data.membership proxies.yaml {QUICK}")


def test_grid_trains_on_membership_and_notices_another_survey(
    cli: Callable[[str], None], tmp_path: Path
) -> None:
    data = SyntheticDataModule(n_rows=2000, seed=0)
    path = write_survey(data, 300, tmp_path / "survey.csv")
    before = SyntheticDataModule(n_rows=2000, seed=0, membership=str(path)).options
    options = "--data.n_rows 2000 --epochs 1 --pretrain_epochs 0 --plot false --report false --workers 1"
    cli(f"grid --data synthetic --data.membership survey.csv --eta 1 --seeds 1 {options}")
    results = pd.read_csv("grid_synthetic/results.csv")
    assert results["lambda/membership"].iloc[-1] == 1
    write_survey(data, 200, path)
    assert SyntheticDataModule(n_rows=2000, seed=0, membership=str(path)).options != before


@pytest.mark.parametrize(
    ("membership", "message"),
    [
        ("no.csv", "there is no file no.csv"),
        ("nothing", "membership: there is no column 'nothing'"),
    ],
)
def test_membership_that_is_not_there(membership: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyntheticDataModule(n_rows=200, seed=0, membership=membership).setup()
