"""Search spaces from YAML."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting
from fairrf_lightning.experiments.space import DEFAULT_SPACE, PARAMETERS, parse_space, read_space


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
