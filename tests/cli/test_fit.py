import json
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import Linear
from fairrf_lightning.checkpoints import weights_digest
from fairrf_lightning.cli import main
from fairrf_lightning.messages import install_command
from fairrf_lightning.presets import preset_names
from tests.conftest import Cli, Printed

SMALL = "--data synthetic --data.n_rows 2000 --data.batch_size 200"
SHORT = "--trainer.max_epochs=2 --data.batch_size=2048"
TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def checkpoint(run: int = 0) -> Path:
    (path,) = Path(f"lightning_logs/version_{run}/checkpoints").glob("best.ckpt")
    return path


@pytest.fixture(scope="module")
def adult(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a run on Adult and what it printed."""
    folder, printed = tmp_path_factory.mktemp("adult"), StringIO()
    options = f"--data adult --seed_everything 7 --trainer.enable_progress_bar false {SHORT}"
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed):
        patched.chdir(folder)
        patched.setattr(sys, "argv", ["train.py"])
        main(["fit", *options.split()])
    return folder / "lightning_logs/version_0", printed.getvalue()


def test_fit_prints_the_table_of_the_test_split_and_the_next_commands(adult: tuple[Path, str]) -> None:
    for part in ("Test split", "accuracy", "dEO", "dDP", "95 % interval", "Trained without: sex", "eta 0.6"):
        assert part in adult[1]
    following = adult[1].partition("Next:\n")[2].splitlines()
    for line, name in zip(following, ("report", "audit", "predict"), strict=True):
        assert line.endswith(f"train.py {name} lightning_logs/version_0")


def test_the_report_is_the_last_next_command_if_it_needs_an_installation(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairrf_lightning.messages._REPORT_PACKAGES", ("no_such_package",))
    shown = printed("fit --data synthetic --data.n_rows 300 --trainer.max_epochs 1")
    following = shown.partition("Next:\n")[2].splitlines()
    assert [line.split()[-2] for line in following] == ["audit", "predict", "report"]
    assert following[-1].startswith(f"  {install_command('report')} && python train.py report ")


def test_a_run_keeps_its_config_seed_versions_and_columns(adult: tuple[Path, str]) -> None:
    folder = adult[0]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["data"]["class_path"] == "fairrf_lightning.datamodules.AdultDataModule"
    assert config["model"]["init_args"]["eta"] == 0.6
    assert config["lambda_update"]["beta"] == 0.5
    assert config["checkpoint"]["monitor"] == "val_objective"
    record = json.loads((folder / "run.json").read_text())
    assert record["seed"] == 7
    assert record["versions"]["torch"] == torch.__version__
    assert "age" in record["columns"]
    assert not any(column.startswith("sex") for column in record["columns"])
    assert record["rows"] == {"train": 22611, "val": 9044, "test": 13567}


def test_the_logged_names_are_those_promised(adult: tuple[Path, str]) -> None:
    logged = set(pd.read_csv(adult[0] / "metrics.csv").columns)
    features = ("age", "relationship", "marital-status")
    promised = {"train_loss", "train_penalty"}
    promised |= {f"{name}/{feature}" for name in ("lambda", "penalty") for feature in features}
    for stage in ("val", "test"):
        promised |= {
            f"{stage}_{name}" for name in ("loss", "penalty", "objective", "acc", "dp_gap", "eo_gap")
        }
        promised |= {
            f"{stage}_{name}_{end}" for name in ("acc", "dp_gap", "eo_gap") for end in ("low", "high")
        }
    promised |= {f"test_{name}/{feature}" for name in ("lambda", "penalty") for feature in features}
    assert promised <= logged


def test_test_and_validate_need_only_the_checkpoint(adult: tuple[Path, str], printed: Printed) -> None:
    table = adult[1].split("Test split")[1].split("Groups")[0]
    best = adult[0] / "checkpoints" / "best.ckpt"
    for options in (f"--data adult --ckpt_path {best}", f"--ckpt_path {best}"):
        assert printed(f"test {options}").split("Test split")[1].split("Groups")[0] == table
    assert "Validation split" in printed(f"validate --ckpt_path={best}")
    copy = Path("copy/checkpoints/best.ckpt")  # of a run whose config cannot be read
    copy.parent.mkdir(parents=True)
    copy.write_bytes(best.read_bytes())
    Path("copy/config.yaml").write_text("a: [")
    assert "Validation split" in printed(f"validate --ckpt_path {copy}")


def test_predict_writes_probabilities_and_decisions_of_the_test_rows(
    adult: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["predict", str(adult[0]), "--predictions.path", "out/rows.csv", "--trainer.logger=false"])
    rows = pd.read_csv("out/rows.csv")
    assert {"row", "probability", "decision"} <= set(rows.columns)
    assert len(rows) == 13567
    assert rows["row"].is_monotonic_increasing
    assert rows["probability"].between(0, 1).all()
    assert (rows["decision"] == (rows["probability"] >= 0.5)).all()
    assert not Path("out/rows.csv.part").exists()


def test_the_saved_config_repeats_the_run(cli: Cli) -> None:
    cli(f"fit {SMALL} --model.backbone linear --model.eta 0.2 --trainer.max_epochs 2")
    cli("fit --config lightning_logs/version_0/config.yaml")
    first, second = (torch.load(checkpoint(run), weights_only=True)["state_dict"] for run in (0, 1))
    torch.testing.assert_close(dict(second), dict(first), rtol=0, atol=0)


def test_config_files_may_use_short_names(cli: Cli) -> None:
    Path("my.yaml").write_text(
        "data: synthetic\nmodel:\n  class_path: fairrf\n  init_args:\n    backbone: linear\n    eta: 0.1\n"
        "trainer:\n  max_epochs: 1\n  logger: csv\n"
    )
    cli("fit --config my.yaml")
    config = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())
    assert config["model"]["init_args"]["backbone"]["class_path"] == "fairrf_lightning.backbones.Linear"


def test_data_finds_the_users_presets(cli: Cli) -> None:
    Path("datamodules").mkdir()
    Path("datamodules/young.yaml").write_text(
        "class_path: synthetic\ninit_args:\n  related: [height]\n  n_rows: 600\n"
    )
    cli("fit --data young --trainer.max_epochs=1")
    config = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())
    assert config["data"]["class_path"] == "fairrf_lightning.datamodules.SyntheticDataModule"
    assert config["data"]["init_args"]["related"] == ["height"]


def test_the_checkpoint_can_be_chosen_by_a_gap(cli: Cli) -> None:
    cli(f"fit {SMALL} --checkpoint.monitor val_eo_gap --pretrain.epochs 0 --trainer.max_epochs=4")
    history = pd.read_csv("lightning_logs/version_0/metrics.csv").dropna(subset=["val_eo_gap"])
    best = history["epoch"].to_numpy()[history["val_eo_gap"].argmin()]
    assert torch.load(checkpoint(), weights_only=True)["epoch"] == best


def test_eta_zero_is_the_vanilla_model(printed: Printed) -> None:
    assert "eta 0 (vanilla)" in printed(f"fit {SMALL} --model.eta 0 --trainer.max_epochs 2")
    logged = pd.read_csv("lightning_logs/version_0/metrics.csv")
    assert (logged["train_penalty"].dropna() == 0).all()


@pytest.mark.parametrize("backbone", ["mlp", "linear", "svm"])
def test_each_backbone_learns_more_than_the_majority(cli: Cli, backbone: str) -> None:
    cli(f"fit --data adult --model.backbone {backbone} --model.lr 0.01 --trainer.max_epochs 3")
    logged = pd.read_csv("lightning_logs/version_0/metrics.csv")
    assert logged["test_acc"].dropna().item() > 0.8


def test_optimizer_and_scheduler_are_configurable(cli: Cli) -> None:
    cli(
        f"fit {SMALL} --trainer.max_epochs 2 --model.optimizer torch.optim.SGD --model.optimizer.lr 0.5 "
        "--model.lr_scheduler lightning.pytorch.cli.ReduceLROnPlateau --model.lr_scheduler.monitor val_loss"
    )
    state = torch.load(checkpoint(), weights_only=True)
    assert state["optimizer_states"][0]["param_groups"][0]["lr"] == 0.5
    assert state["lr_schedulers"][0]["mode"] == "min"


def test_a_checkpoint_of_the_command_line_loads_in_python(cli: Cli) -> None:
    cli(f"fit {SMALL} --model.backbone linear --trainer.max_epochs 1")
    module = FairRFModule.load_from_checkpoint(checkpoint(), weights_only=True)
    assert isinstance(module.backbone, Linear)
    assert module.penalty.feature_names == ["height", "income", "hours"]


def test_the_console_script_is_the_same_command() -> None:
    (script,) = entry_points(group="console_scripts", name="fairrf")
    assert script.load() is main


def test_print_config_and_help_know_the_short_names(printed: Printed) -> None:
    config = printed("fit --data adult --model.backbone svm --print_config")
    assert "fairrf_lightning.backbones.LinearSVM" in config
    assert "related" in printed("fit --data.help adult")


def test_the_presets_of_callbacks_can_be_plugged_in(cli: Cli) -> None:
    # `fit` has callbacks like these two already; they are for other projects.
    presets = [name for name in preset_names("callbacks") if name not in ("drop_in", "pretrain")]
    assert presets
    options = " ".join(f"--trainer.callbacks+={preset}" for preset in presets)
    cli(f"fit {SMALL} --trainer.max_epochs 2 {options}")


def test_two_processes_train_from_the_command_line_and_report_once(cli: Cli, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(TRAIN),
        "fit",
        *SMALL.split(),
        "--trainer.max_epochs=2",
        "--trainer.devices=2",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    printed = done.stdout + done.stderr
    assert printed.count("Test split") == printed.count("Next:") == 1
    assert "Starting with 2 processes" in printed
    assert len(list(tmp_path.glob("lightning_logs/*"))) == 1
    cli("predict --ckpt_path lightning_logs/version_0 --trainer.devices=2 --trainer.strategy=ddp_fork")
    assert pd.read_csv(tmp_path / "predictions.csv")["row"].nunique() == 600


def test_a_resumed_run_chooses_among_all_epochs(cli: Cli) -> None:
    options = f"{SMALL} --model.lr 0.05 --pretrain.epochs 0"
    cli(f"fit {options} --trainer.max_epochs 6")
    whole = torch.load(checkpoint(0), weights_only=True)
    cli(f"fit {options} --trainer.max_epochs 3")
    cli(f"fit {options} --trainer.max_epochs 6 --ckpt_path lightning_logs/version_1/checkpoints/last.ckpt")
    resumed = torch.load(checkpoint(1), weights_only=True)
    assert resumed["epoch"] == whole["epoch"]
    assert weights_digest(resumed["state_dict"]) == weights_digest(whole["state_dict"])


def test_choosing_by_accuracy_takes_the_highest(cli: Cli) -> None:
    cli(f"fit {SMALL} --model.lr 0.05 --trainer.max_epochs 4 --checkpoint.monitor val_acc")
    history = pd.read_csv("lightning_logs/version_0/metrics.csv").dropna(subset=["val_acc"])
    best = torch.load(checkpoint(), weights_only=True)["epoch"]
    assert history.set_index("epoch")["val_acc"][best] == history["val_acc"].max()


@pytest.mark.parametrize("switch", ["--trainer.enable_checkpointing false", "--trainer.limit_val_batches 0"])
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_without_a_chosen_checkpoint_the_last_weights_are_tested(printed: Printed, switch: str) -> None:
    assert "Test split" in printed(f"fit {SMALL} --trainer.max_epochs 2 {switch}")


def test_a_class_in_the_current_folder_can_be_named(cli: Cli) -> None:
    Path("my_modules.py").write_text(
        "from fairrf_lightning.datamodules import SyntheticDataModule\n"
        "class MyData(SyntheticDataModule):\n    '''Mine.'''\n"
    )
    cli("fit --data my_modules.MyData --data.n_rows 2000 --trainer.max_epochs 1")
    config = yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())
    assert config["data"]["class_path"] == "my_modules.MyData"
