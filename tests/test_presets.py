from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule, TableDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.presets import (
    class_presets,
    fit_callbacks,
    import_class,
    preset,
    preset_names,
    recommended,
)
from tests.conftest import Refused

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("callbacks", "datamodules"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.mark.usefixtures("here")
def test_every_yaml_file_of_the_repository_is_a_preset() -> None:
    for kind in ("callbacks", "datamodules"):
        stems = {path.stem for path in (REPOSITORY / kind).glob("*.yaml")} - {"fit"}
        assert set(preset_names(kind)) == stems
        for name in stems:
            assert isinstance(import_class(preset(kind, name)["class_path"]), type)


def test_a_class_takes_its_defaults_from_its_preset() -> None:
    assert list(class_presets()) == ["adult", "compas", "lsac", "synthetic", "table"]
    for name, class_path in class_presets().items():
        assert import_class(class_path).name == name
        arguments = preset("datamodules", name).get("init_args", {})
        for argument, value in arguments.items():
            assert list(getattr(import_class(class_path), f"default_{argument}")) == value
    assert AdultDataModule().related == ["age", "relationship", "marital-status"]
    assert COMPASDataModule().groups == ("African-American", "Caucasian")


def test_a_preset_builds_on_another_one(here: Path) -> None:
    (here / "datamodules/young.yaml").write_text("class_path: adult\ninit_args: {seed: 3, related: [age]}\n")
    (here / "datamodules/younger.yaml").write_text("class_path: young\ninit_args: {seed: 4}\n")
    assert preset("datamodules", "younger") == {
        "class_path": "fairrf_lightning.datamodules.AdultDataModule",
        "init_args": {"related": ["age"], "seed": 4},
        "recommended": {"eta": 0.6, "beta": 0.5},
    }
    assert preset_names("datamodules")[-2:] == ["young", "younger"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("class_path: [", "is not valid YAML"),
        ("- 1", "is not a preset"),
        ("init_args: {}", "is not a preset"),
        ("class_path: bad", "leads back to 'bad'"),
    ],
)
def test_a_bad_preset_is_an_input_error(here: Path, content: str, message: str) -> None:
    (here / "datamodules/bad.yaml").write_text(content)
    with pytest.raises(InputError, match=message):
        preset("datamodules", "bad")
    assert recommended(AdultDataModule, {})["eta"] == 0.6
    assert recommended(TableDataModule, {"path": "mine.csv"}) == {}


def test_our_own_presets_take_precedence(here: Path) -> None:
    (here / "datamodules/adult.yaml").write_text("class_path: compas\n")
    assert preset("datamodules", "adult")["class_path"].endswith("AdultDataModule")
    with pytest.raises(InputError, match="no preset 'nix'"):
        preset("callbacks", "nix")


def test_recommended_values_are_those_of_the_data_set(here: Path) -> None:
    (here / "datamodules/mine.yaml").write_text(
        "class_path: table\ninit_args: {path: mine.csv}\nrecommended: {eta: 0.9}\n"
    )

    class Variant(AdultDataModule):
        pass

    assert recommended(Variant, {"related": ["age"]}) == {"eta": 0.6, "beta": 0.5}
    assert recommended(TableDataModule, {"path": "mine.csv", "seed": 1}) == {"eta": 0.9}
    assert recommended(TableDataModule, {"path": "other.csv"}) == {}
    assert recommended(dict, {}) == {}


def test_fit_has_the_callbacks_of_its_file() -> None:
    assert list(fit_callbacks()) == ["pretrain", "lambda_update", "checkpoint", "predictions"]
    for callback in fit_callbacks().values():
        assert isinstance(import_class(callback["class_path"]), type)


def test_callbacks_by_name_in_options_and_config(
    here: Path, cli: Callable[[str], None], capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    (here / "my.yaml").write_text("data: adult_age_only\ntrainer:\n  callbacks: [average_weights]\n")
    (here / "callbacks/quick.yaml").write_text("class_path: early_stopping\ninit_args: {patience: 2}\n")
    with pytest.raises(SystemExit) as stopped:
        cli(
            "fit --config my.yaml --trainer.callbacks+=quick --trainer.callbacks.min_delta 0.5 --print_config"
        )
    assert stopped.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["data"]["init_args"]["related"] == ["age"]
    average, quick = config["trainer"]["callbacks"]
    assert average["class_path"].endswith("StochasticWeightAveraging")
    assert quick["init_args"].items() >= {"monitor": "val_objective", "patience": 2, "min_delta": 0.5}.items()
    assert "did you mean 'early_stopping'" in refused("fit --data adult --trainer.callbacks+=early_stoping")


@pytest.mark.slow
def test_the_wheel_holds_the_presets_and_one_name(tmp_path: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--target", str(tmp_path)]
    command = [sys.executable, "-m", "pip", "install", "-q", *options, str(REPOSITORY)]
    subprocess.run(command, check=True)
    names = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".dist-info")} - {"bin"}
    assert names == {"fairrf_lightning"}
    script = (
        "from fairrf_lightning import presets; print(presets.__file__, *presets.preset_names('datamodules'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    installed, *data_sets = found.stdout.split()
    assert Path(installed).is_relative_to(tmp_path)
    assert set(data_sets) == {path.stem for path in (REPOSITORY / "datamodules").glob("*.yaml")}
