from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from lightning import Trainer
from torch import Tensor

from fairrf_lightning import FairRFModule, InputError
from fairrf_lightning.backbones import Linear
from fairrf_lightning.datamodules import SyntheticDataModule, TensorBatches, penalty_columns
from fairrf_lightning.methods import KSMOTE

MakeData = Callable[..., SyntheticDataModule]


def two_clouds() -> dict[str, Tensor]:
    """Return 120 rows around (-5, 0) and 80 around (5, 0), a fifth of them positive."""
    generator = torch.Generator().manual_seed(0)
    clusters = (torch.arange(200) >= 120).long()
    inputs = torch.randn(200, 2, generator=generator)
    inputs[:, 0] += 10.0 * clusters - 5
    return {
        "inputs": inputs,
        "target": (torch.arange(200) % 5 == 0).float(),
        "related": torch.nn.functional.one_hot(clusters, 2).float(),
    }


def test_clusters_are_those_of_the_data() -> None:
    rows = two_clouds()
    clusters = KSMOTE(n_clusters=2).cluster(rows["inputs"], torch.arange(0, 200, 2), seed=0)
    truth = rows["related"].argmax(1)
    assert torch.equal(clusters, truth) or torch.equal(clusters, 1 - truth)


def test_classes_become_equal_within_each_cluster() -> None:
    balanced = KSMOTE(n_clusters=2).balance(two_clouds(), seed=0)
    counts = torch.stack([balanced["related"].T @ y for y in (balanced["target"], 1 - balanced["target"])])
    assert counts.tolist() == [[96, 64], [96, 64]]
    assert {tensor.dtype for tensor in balanced.values()} == {torch.float32}


def test_synthetic_rows_lie_between_a_row_and_one_of_its_neighbours() -> None:
    rows = two_clouds()
    neighbours = 3
    balanced = KSMOTE(2, neighbours).balance(rows, seed=0)
    for cluster in range(2):
        real = rows["inputs"][(rows["related"][:, cluster] == 1) & (rows["target"] == 1)].double()
        mine = balanced["related"][:, cluster] == 1
        made = balanced["inputs"][mine & (balanced["target"] == 1)][len(real) :].double()
        assert len(made) > 0
        nearest = torch.cdist(real, real).argsort(1)[:, 1 : neighbours + 1]
        starts = real[:, None].expand(-1, neighbours, -1).reshape(-1, 2)
        ends = real[nearest].reshape(-1, 2)
        detour = torch.cdist(made, starts) + torch.cdist(made, ends) - (starts - ends).norm(dim=1)
        assert float(detour.min(dim=1).values.max()) < 1e-5


def test_real_rows_are_kept() -> None:
    rows = two_clouds()
    balanced = KSMOTE(2).balance(rows, seed=0)
    kept = {tuple(row) for row in balanced["inputs"].tolist()}
    assert {tuple(row) for row in rows["inputs"].tolist()} <= kept


@pytest.mark.parametrize(("positives", "expected"), [(0, 0), (1, 120), (2, 120)])
def test_a_cluster_with_hardly_a_row_of_a_class(positives: int, expected: int) -> None:
    rows = two_clouds()
    first = torch.arange(200) < 120
    rows["target"] = torch.where(first, (torch.arange(200) < positives).float(), rows["target"])
    balanced = KSMOTE(2).balance(rows, seed=0)
    mine = balanced["related"][:, 0] == 1
    assert float(balanced["target"][mine].sum()) == max(expected - positives, 0)


def test_training_is_balanced_and_evaluation_is_not(make_data: MakeData) -> None:
    data, plain = make_data(ksmote=KSMOTE(3)), make_data()
    loaders = data.train_dataloader(), data.train_dataloader()
    train, again = (loader.tensors for loader in loaders if isinstance(loader, TensorBatches))
    assert float(train["target"].mean()) == 0.5
    assert data.related_columns == {"cluster": [0, 1, 2]}
    assert data.split_sizes == plain.split_sizes
    assert torch.equal(data._parts["val"]["inputs"], plain._parts["val"]["inputs"])
    assert torch.equal(again["inputs"], train["inputs"])


def test_the_penalty_holds_down_the_dependence_on_the_clusters(
    make_data: MakeData, fit: Callable[..., Trainer]
) -> None:
    data = make_data(ksmote=KSMOTE(3))
    free, held = (
        fit(FairRFModule(backbone=Linear, lr=0.05, eta=eta), data, 4).callback_metrics for eta in (0.0, 5.0)
    )
    assert float(held["penalty/cluster"]) < 0.5 * float(free["penalty/cluster"])


def test_a_checkpoint_restores_the_clusters(make_data: MakeData) -> None:
    trained, fresh = make_data(ksmote=KSMOTE(3)), make_data()
    fresh.setup()
    fresh.load_state_dict(trained.state_dict())
    assert fresh.ksmote == KSMOTE(3)
    assert torch.equal(fresh._parts["test"]["related"], trained._parts["test"]["related"])


@pytest.mark.parametrize(("options", "message"), [((1, 5), "n_clusters = 1"), ((2, 0), "neighbours = 0")])
def test_wrong_options_are_refused(options: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        KSMOTE(*options)


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match="3 training rows are too few"):
        KSMOTE(4).cluster(torch.zeros(9, 2), torch.arange(3), seed=0)


def test_a_missing_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    others = lambda name: None if name == "imblearn" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(penalty_columns, "find_spec", others)
    with pytest.raises(InputError, match=r"imblearn is not installed.*\[methods\]"):
        KSMOTE(2).balance(two_clouds(), seed=0)
