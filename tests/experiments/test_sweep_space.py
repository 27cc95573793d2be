"""Search spaces from YAML, and objectives, against NumPy."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack
from fairrf_lightning.experiments.space import (
    DEFAULT_SPACE,
    PARAMETERS,
    S_FREE,
    WITH_S,
    Objective,
    parse_space,
    read_space,
)
from fairrf_lightning.functional import Statistic
from fairrf_lightning.penalty import Given


def test_the_default_space_is_valid_and_its_parameters_make_settings() -> None:
    space = read_space()
    assert list(space.distributions) == list(DEFAULT_SPACE)
    params = {"eta": 0.7, "beta": 0.4, "rule": "fixed", "statistic": "correlation", "lr": 0.002}
    params |= {"pretrain_epochs": 2}
    assert space.setting(params) == Setting(eta=0.7, beta=0.4, every_n_steps=None, statistic="correlation")
    assert space.schedule(params, 9) == Schedule(epochs=9, pretrain_epochs=2, lr=0.002)
    assert "eta" not in space.structure(params)
    assert space.structure(params)["lr"] == 0.002


def test_the_spaces_of_the_documentation_are_valid() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    default, own = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    assert default == DEFAULT_SPACE
    assert list(parse_space(own, "docs").distributions) == ["eta", "hidden", "dropout"]
    assert all(f"`{name}`" in page for name in PARAMETERS)


def test_a_file_gives_ranges_choices_and_fixed_values(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "eta: {low: 0, high: 1}\nlr: {low: 1e-4, high: 1e-2, log: true}\nevery_n_steps: {low: 10, high: 90}\n"
        "hidden: [[64, 32], [16], []]\ndropout: [0, 0.2]\nbackbone: mlp\ngiven: positives\nbeta: 1\n"
    )
    space = read_space(path)
    assert space.distributions == {
        "eta": FloatDistribution(0, 1),
        "lr": FloatDistribution(1e-4, 1e-2, log=True),
        "every_n_steps": IntDistribution(10, 90),
        "hidden": CategoricalDistribution(["64x32", "16", ""]),
        "dropout": CategoricalDistribution([0.0, 0.2]),
    }
    assert space.fixed == {"backbone": "mlp", "given": "positives", "beta": 1.0}
    setting = space.setting({"eta": 0.5, "hidden": "64x32"})
    assert (setting.hidden, setting.given, setting.beta) == ((64, 32), "positives", 1.0)
    assert space.setting({"hidden": ""}).hidden == ()


def test_layers_given_as_one_list_are_fixed() -> None:
    space = parse_space({"hidden": [8, 4], "eta": [0.1, 0.2]}, "mine")
    assert space.setting({}).hidden == (8, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "expected parameters"),
        ({"etta": 1}, "there is no parameter 'etta'; did you mean 'eta'"),
        ({"eta": 1}, "nothing to search"),
        ({"eta": []}, "eta: an empty list"),
        ({"eta": {"low": 1}}, "expected {low: ..., high: ...}"),
        ({"eta": {"low": 2, "high": 1}}, "eta: "),
        ({"eta": {"low": -1, "high": 1}}, "eta = -1"),
        ({"eta": {"low": 0, "high": 1, "log": True}}, "eta: "),
        ({"eta": {"low": 0.1, "high": 1, "log": "yes"}}, "expected true or false"),
        ({"eta": ["a"]}, "eta: "),
        ({"eta": [True]}, "expected a number"),
        ({"eta": [None]}, "expected a number"),
        ({"beta": [0.0]}, "beta = 0"),
        ({"lr": [0]}, "lr = 0"),
        ({"dropout": [1]}, "dropout = 1"),
        ({"pretrain_epochs": {"low": -1, "high": 2}}, "pretrain_epochs = -1"),
        ({"rule": {"low": 0, "high": 1}}, "has no range"),
        ({"rule": ["kkd"]}, "did you mean 'kkt'"),
        ({"hidden": [[0]]}, "hidden = [0]"),
        ({"hidden": [["a"]]}, "expected sizes of layers"),
        ({"hidden": "64"}, "expected sizes of layers"),
    ],
)
def test_a_bad_space_is_explained(given: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_space(given, "mine.yaml")
    assert str(error.value).startswith("mine.yaml: ")
    assert message in str(error.value)


def test_a_bad_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_space(tmp_path / "none.yaml")
    path = tmp_path / "space.yaml"
    path.write_text("eta: [1")
    with pytest.raises(InputError, match="is not valid YAML"):
        read_space(path)


@pytest.mark.parametrize("entry", ["{low: 0, high: 4}", "[0, 4]", "4"])
def test_pretraining_leaves_epochs_for_the_penalty(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(f"eta: [0.1, 0.5]\npretrain_epochs: {entry}\n", encoding="utf-8")
    assert read_space(path, epochs=5).max_pretrain_epochs == 4
    with pytest.raises(InputError, match="pretrain_epochs may be 4, and --epochs is 4"):
        read_space(path, epochs=4)
    assert read_space(epochs=2).max_pretrain_epochs == 1
    assert read_space().max_pretrain_epochs == 3


# The second objective.

DATA = SyntheticDataModule(n_rows=1000, seed=0)
DECISIONS = {"val_balanced_acc", "val_positive_share"}  # decide on eligibility


def stack(statistic: Statistic = "covariance", given: Given = "all") -> Stack:
    settings = [Setting(eta=eta, statistic=statistic, given=given) for eta in (0.0, 0.5, 2.0)]
    trained = Stack(lambda **_: DATA, settings, [0, 1], Schedule(epochs=2))
    trained.fit()
    return trained


@pytest.mark.parametrize("name", S_FREE)
def test_the_s_free_measure_is_the_mean_r_whatever_the_penalty_is(name: str) -> None:
    trained = stack("correlation", "positives")
    measured = Objective(name).measure(trained)
    assert set(measured) == {"val_acc", name, *DECISIONS}  # no gap leaks out
    (batch,) = trained.data.val_dataloader()
    with torch.no_grad():
        probs = trained.module(batch["inputs"]).sigmoid().double().numpy()
    rows = np.asarray(batch["target"][0, 0]) > (0.5 if name.endswith("positives") else -1)
    columns = [column for (column,) in DATA.related_columns.values()]
    related = batch["inputs"][0][:, columns].double().numpy()[rows]
    compare: Callable[..., Any] = np.corrcoef if "correlation" in name else partial(np.cov, ddof=0)
    for s, p in np.ndindex(2, 3):
        expected = np.mean([abs(compare(column, probs[s, p][rows])[0, 1]) for column in related.T])
        assert float(measured[name][s, p]) == pytest.approx(expected, abs=1e-6)


def test_by_default_it_is_what_the_grid_breaks_ties_by() -> None:
    trained = stack()
    values = trained.evaluate(["val"])
    assert not any(name.startswith("test_") for name in values)
    penalties = torch.stack([values[f"val_penalty/{name}"] for name in DATA.related])
    torch.testing.assert_close(Objective().measure(trained)["val_covariance"], penalties.mean(0))


def test_a_gap_is_measured_by_consent() -> None:
    objective = Objective.parse("with_s:val_dp_gap")
    assert objective.uses_sensitive
    assert set(objective.measure(stack())) == {"val_acc", "val_dp_gap", *DECISIONS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "val_dp_gap",
            "looks at S on the validation rows; if you may, say so by --objective with_s:val_dp_gap",
        ),
        ("with_s:val_covariance", "does not look at S; write --objective val_covariance"),
        ("val_covarance", "did you mean 'val_covariance'"),
        ("with_s:dp_gap", "did you mean 'with_s:val_dp_gap'"),
    ],
)
def test_other_objectives_are_explained(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Objective.parse(text)
    assert message in str(error.value)


def test_data_that_do_not_fit_are_refused() -> None:
    exposed = SyntheticDataModule(n_rows=100, expose_sensitive=True)
    with pytest.raises(InputError, match="expose_sensitive shows S"):
        Objective().check(exposed)
    for name in WITH_S:
        Objective(name).check(exposed)
