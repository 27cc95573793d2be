"""Options work or are refused, and a run records what it used."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import COMPASDataModule, SyntheticDataModule
from fairrf_lightning.datamodules.leakage import protected_names
from fairrf_lightning.experiments.space import read_space
from tests.conftest import Cli, Printed, Refused

SMALL = "--data synthetic --data.n_rows 600 --trainer.max_epochs 2"
RUN = Path("lightning_logs/version_0")
PRESETS = Path(__file__).parents[2] / "callbacks"

# The option of a class is named as it was typed.
UNKNOWN = r"--[\w.]+\.{0}: \w+ has no such option|Option '{0}' is not accepted"


def checkpoint() -> Path:
    return next(RUN.glob("checkpoints/best.ckpt"))


@pytest.mark.parametrize(
    "options",
    [
        "--data.nonsense={}",
        "--data.nonsense {}",
        "--data.nonsense={a:{}}",
        "--model.nonsense={}",
        "--model.backbone.nonsense={}",
        "--trainer.logger csv --trainer.logger.nonsense={}",
        "--data.ksmote.nonsense={}",
    ],
)
def test_an_unknown_option_with_an_empty_value_is_refused(refused: Refused, options: str) -> None:
    assert re.search(UNKNOWN.format("nonsense"), refused(f"fit {SMALL} {options}"))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("nonsense: {}", "nonsense"),
        ("trainer: {nonsense: {}}", "trainer.nonsense"),
        ("pretrain: {epochs: 1, nonsense: {}}", "pretrain.nonsense"),
        ("model: {class_path: fairrf, init_args: {nonsense: {}}}", "nonsense"),
    ],
)
def test_an_unknown_empty_option_of_a_file_is_refused(refused: Refused, config: str, name: str) -> None:
    Path("my.yaml").write_text(f"data: synthetic\n{config}\n")
    assert re.search(UNKNOWN.format(name), refused("fit --config my.yaml"))


def test_a_method_that_the_data_do_not_have_is_refused(refused: Refused) -> None:
    message = refused("fit --method ksmote --data lightning.pytorch.demos.boring_classes.BoringDataModule")
    assert "Option 'ksmote' is not accepted: --method constrain_s, remove_r and ksmote" in message


@pytest.mark.parametrize(
    "command",
    [
        "fit --trainer.max_epochs 1 --trainer.accelerator cpu",
        "grid --eta 1 --seeds 1 --epochs 1 --pretrain_epochs 0 --plot false --report false --workers 1",
    ],
)
def test_a_method_works_for_a_table_of_the_user(command: str, cli: Cli) -> None:
    rows = "".join(f"{n % 50},{n % 7},{int(n % 50 + n % 7 > 28)}\n" for n in range(600))
    Path("people.csv").write_text(f"age,zip,hired\n{rows}")
    data = "--data table --data.path people.csv --data.target hired --data.related [age]"
    cli(f"{command} --method ksmote {data}")


def test_empty_values_of_known_options_stay_welcome(cli: Cli) -> None:
    Path("my.yaml").write_text(
        "data: {class_path: synthetic, init_args: {n_rows: 600, ksmote: {}}}\n"
        "model: {class_path: fairrf, init_args: {backbone: {class_path: mlp, init_args: {}}}}\n"
        "trainer: {max_epochs: 1}\npretrain: {}\n"
    )
    cli("fit --config my.yaml")
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    assert config["data"]["init_args"]["ksmote"] == {"n_clusters": 4, "neighbours": 5}


@pytest.mark.filterwarnings("ignore:Encountered `nan` values")
def test_predictions_that_are_not_finite_are_not_written(cli: Cli, refused: Refused) -> None:
    cli(f"fit {SMALL}")
    broken = torch.load(checkpoint(), weights_only=True)
    name = next(name for name in broken["state_dict"] if name.endswith("weight"))
    broken["state_dict"][name][0, 0] = torch.nan
    torch.save(broken, "broken.ckpt")
    data = "--data synthetic --data.n_rows 600 --ckpt_path broken.ckpt"
    earlier = "row,probability,decision\n0,0.5,1\n"
    Path("predictions.csv").write_text(earlier)
    message = refused(f"predict {data}")
    assert "probability of 180 of 180 rows (nothing is written): the predictions are not finite" in message
    assert Path("predictions.csv").read_text() == earlier
    assert [path.name for path in Path().glob("*predictions*")] == ["predictions.csv"]
    for command in ("test", "validate"):
        assert "predictions are not finite" in refused(f"{command} {data}")


@pytest.mark.parametrize("logger", ["", "--trainer.logger csv"])
def test_default_root_dir_holds_logs_and_checkpoints(cli: Cli, logger: str) -> None:
    cli(f"fit {SMALL} --trainer.default_root_dir elsewhere {logger}")
    run = Path("elsewhere/lightning_logs/version_0")
    assert {"run.json", "config.yaml", "metrics.csv", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert not Path("lightning_logs").exists()


def test_a_logger_keeps_its_own_folder(cli: Cli) -> None:
    logger = "--trainer.logger csv --trainer.logger.save_dir mine"
    cli(f"fit {SMALL} --trainer.default_root_dir elsewhere {logger}")
    assert Path("mine/lightning_logs/version_0/run.json").is_file()


@pytest.mark.filterwarnings("ignore:.*configure_optimizers.* will be overridden")
def test_an_optimizer_and_a_scheduler_can_be_named(cli: Cli) -> None:
    scheduler = "--lr_scheduler CosineAnnealingLR --lr_scheduler.T_max 4"
    cli(f"fit {SMALL} --optimizer SGD --optimizer.lr 0.123 --optimizer.momentum 0.5 {scheduler}")
    state = torch.load(checkpoint(), weights_only=True)
    (group,) = state["optimizer_states"][0]["param_groups"]
    assert (group["initial_lr"], group["momentum"]) == (0.123, 0.5)
    assert len(group["params"]) > 1
    assert state["lr_schedulers"][0]["T_max"] == 4
    cli(f"test --config {RUN / 'config.yaml'} --ckpt_path {checkpoint()}")  # has no use for an optimiser


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--lr_scheduler CosineAnnealingLR --lr_scheduler.T_max 4", "--optimizer Adam"),
        ("--trainer.barebones true", "--trainer.logger false --trainer.enable_checkpointing false"),
        (f"--trainer.callbacks+={PRESETS / 'pretrain.yaml'}", "PretrainCallback is built in already"),
        (
            2 * f" --trainer.callbacks+={PRESETS / 'early_stopping.yaml'}",
            "more than one stateful callback of type `EarlyStopping`. Leave one out.",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(
    refused: Refused, options: str, expected: str
) -> None:
    assert expected in refused(f"fit {SMALL} {options}")


MODULE = """
import torch
from lightning import LightningModule

class Mine(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)
    def training_step(self, batch):
        logits = self.net(batch["inputs"]).squeeze(1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


@pytest.mark.filterwarnings("ignore:.*validation_step", "ignore:.*val_dataloader")
def test_an_attached_penalty_takes_the_place_of_the_built_in_update(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Refused
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("foreign_module.py").write_text(MODULE)
    attached = (
        f"--trainer.callbacks+={PRESETS / 'drop_in.yaml'} --trainer.callbacks.every_n_steps=1000 "
        '--trainer.callbacks.penalty.init_args.related={"a":[0],"b":[1]} --trainer.callbacks.module=net'
    )
    command = f"fit --model foreign_module.Mine {SMALL} {attached}"
    # With the built-in update lambda would have been updated every step or so.
    assert "lambda was never updated" in printed(command)
    message = refused(f"{command} --lambda_update.every_n_steps 1")
    assert "--lambda_update.* has no effect" in message
    again = "fit --config lightning_logs/version_0/config.yaml"  # the record of the run trains it again
    assert "lambda was never updated" in printed(again)


@pytest.mark.filterwarnings("ignore:.*validation_step", "ignore:.*val_dataloader")
def test_the_built_in_update_attaches_a_penalty_to_a_module_of_the_users(cli: Cli) -> None:
    Path("own_module_of_a_user.py").write_text(MODULE)
    attached = "--lambda_update.penalty RelatedFeaturePenalty --lambda_update.module net"
    related = '--lambda_update.penalty.related {"age":[0]}'
    cli(f"fit --model own_module_of_a_user.Mine {SMALL} {attached} {related}")
    assert "penalty/age" in (RUN / "metrics.csv").read_text()


@pytest.mark.parametrize(("rows", "batch", "interval"), [(20_000, 512, 50), (1000, 64, 6), (60, 16, 1)])
def test_batches_and_updates_follow_the_training_rows(rows: int, batch: int, interval: int) -> None:
    data = SyntheticDataModule(n_rows=rows, seed=0)
    assert (data.batch_size, data.update_interval) == (batch, interval)
    assert next(iter(data.train_dataloader()))["inputs"].shape[0] == batch
    assert SyntheticDataModule(n_rows=rows, batch_size=7).batch_size == 7


def test_the_smallest_published_data_keep_their_batches() -> None:
    data = COMPASDataModule(seed=0)
    data.prepare_data()
    assert (data.batch_size, data.update_interval) == (512, 50)


def test_a_sweep_updates_lambda_as_often_as_a_fit() -> None:
    space = read_space(None)
    small = space.with_default("every_n_steps", 6)
    assert small.setting({}).every_n_steps == 6
    assert space.with_default("every_n_steps", 50) == space


def test_grid_trains_small_tables_with_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = "--eta 0.5 --seeds 1 --epochs 2 --plot false --report false --workers 1"
    main(f"grid --data synthetic --data.n_rows 1000 {options}".split())
    (results,) = Path().glob("*/results.csv")
    assert set(pd.read_csv(results)["every_n_steps"]) == {6}


def test_names_are_matched_as_words() -> None:
    protected = [
        "SEX",
        "applicant_sex",
        "raceEthnicity",
        "native-country",
        "COUNTRY_OF_BIRTH",
        "foreign_worker",
    ]
    ordinary = ["Sussex", "trace", "foreign_currency", "data_migration", "interface", "age", "country"]
    assert protected_names([*protected, *ordinary]) == protected


def test_a_checkpoint_chosen_by_s_is_kept_but_not_tested(printed: Printed) -> None:
    shown = printed(f"fit {SMALL} --model.lr 0.02 --trainer.callbacks+={PRESETS / 'keep_fairest.yaml'}")
    assert "checkpoints/best.ckpt" in shown.partition("Checkpoint: ")[2].splitlines()[0]
    assert list((RUN / "checkpoints").glob("fairest-*.ckpt"))


def test_a_thread_can_run_a_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failures.append(args.exc_value))
    thread = threading.Thread(target=cli, args=(f"fit {SMALL}",))
    thread.start()
    thread.join()
    assert not failures
    assert (RUN / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.parametrize("related", ["age,relationship", "[age,relationship]", "age"])
def test_a_list_may_be_given_without_brackets(printed: Printed, related: str) -> None:
    for option in (f"--data.related {related}", f"--data.related={related}"):
        config = yaml.safe_load(printed(f"fit --data adult {option} --print_config"))
        assert config["data"]["init_args"]["related"] == related.strip("[]").split(",")
