from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairrf_lightning.cli.short_names import METHODS, expand_method
from tests.conftest import Cli, Printed, Refused

RUN = Path("lightning_logs/version_0")
QUICK = "--trainer.max_epochs=1 --trainer.accelerator=cpu"
SYNTHETIC = "--data synthetic --data.n_rows=1000"


def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((RUN / "config.yaml").read_text(encoding="utf-8"))
    return loaded


def record() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RUN / "run.json").read_text(encoding="utf-8"))
    return loaded


def test_arl_says_what_its_adversary_did(printed: Printed) -> None:
    options = "--data.n_rows 2000 --data.batch_size 200 --model.pretrain_steps 3 --trainer.max_epochs 1"
    expected = "ARL: adversary with learning rate 0.01, after 3 steps of the learner alone."
    assert expected in printed(f"fit --data synthetic --method arl {options}")


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_on_adult_and_is_tested_as_it_was_trained(method: str, printed: Printed) -> None:
    fitted = printed(f"fit --data adult --method {method} --trainer.max_epochs=2 --trainer.accelerator=cpu")
    options = f"--trainer.accelerator=cpu {'--method arl' if method == 'arl' else ''}"
    tested = printed(f"test --data adult {options} --ckpt_path {RUN / 'checkpoints/best.ckpt'}")
    assert tested.split("Checkpoint")[0] == fitted.split("Checkpoint")[0]
    expected = {
        "fairrf": "Trained without: sex.\neta 0.6; lambda: age",
        "vanilla": "Trained without: sex.\neta 0 (vanilla)",
        "constrain_s": "Trained with: sex in the penalty, not as an input.\neta 0.6; lambda: sex 1.00",
        "remove_r": "Trained without: sex, age, relationship, marital-status.\neta 0",
        "ksmote": "Trained without: sex.\neta 0.6; lambda: cluster 1.00",
        "arl": "Trained without: sex.\nARL: the adversary never stepped; all 88 steps",
    }
    assert expected[method] in fitted
    assert record()["expose_sensitive"] is (method == "constrain_s")
    assert record()["remove_related"] is (method == "remove_r")
    assert record()["ksmote"] == ({"n_clusters": 4, "neighbours": 5} if method == "ksmote" else None)
    assert config()["data"]["init_args"]["expose_sensitive"] is (method == "constrain_s")


def test_the_saved_config_repeats_the_run(cli: Cli) -> None:
    arl = "--model.adversary_lr=0.5 --method arl --model.pretrain_steps=2"
    cli(f"fit {QUICK} {SYNTHETIC} --data.ksmote.n_clusters=3 {arl}")
    first = config()
    assert first["model"]["class_path"] == "fairrf_lightning.methods.ARLModule"
    arguments = first["model"]["init_args"]  # options may precede the method or follow it
    assert (arguments["adversary_lr"], arguments["pretrain_steps"]) == (0.5, 2)
    assert first["data"]["init_args"]["ksmote"] == {"n_clusters": 3, "neighbours": 5}
    cli(f"fit --config {RUN / 'config.yaml'}")
    again = yaml.safe_load(Path("lightning_logs/version_1/config.yaml").read_text(encoding="utf-8"))
    assert (again["data"], again["model"]) == (first["data"], first["model"])


def test_other_arguments_pass_unchanged() -> None:
    args = ["fit", "--data", "adult", "--model.eta", "0.1"]
    assert expand_method(args) == args


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method ksmot", "did you mean 'ksmote'"),
        ("--method vanilla --model.eta 0.3", "--method vanilla sets --model.eta=0"),
        ("--method arl --model fairrf", "--method arl sets --model=arl"),
        ("--method ksmote --data.expose_sensitive true", "expose_sensitive and ksmote"),
        ("--method arl --model.backbone svm", "LinearSVM has a loss of its own"),
        ("--method ksmote --data.ksmote.n_clusters 1", "n_clusters = 1"),
    ],
)
def test_wrong_options_answer_in_a_line(options: str, message: str, refused: Refused) -> None:
    assert message in refused(f"fit {SYNTHETIC} {options}")


def test_help_names_the_methods(printed: Printed) -> None:
    assert "constrain_s: --data.expose_sensitive=true" in " ".join(printed("fit --help-all").split())
