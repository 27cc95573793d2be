"""Makes a folder in which a command finds the files that it names, and runs it there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule
from tests.commands.shell_text import ROOT

LINKED = ("train.py", "benchmarks", "callbacks", "datamodules", "sweeps")
_BATCHES = " ".join(f"--trainer.limit_{part}_batches 4" for part in ("train", "val", "test"))
# Appended to a command, so that it takes seconds: the last value of an option counts.
SMALL = {
    "fit": f"--trainer.max_epochs 2 {_BATCHES} --trainer.enable_progress_bar false",
    "grid": "--epochs 2 --seeds 1 --workers 1",
    "sweep": "--trials 2 --epochs 2 --seeds 1 --workers 1",
    "reproduce": "--only compas --seeds 2 --epochs 1 --workers 1 --out reproduced",
    "benchmarks/adult_headline.py": "--seeds 2 --etas 0 --workers 1",
    "benchmarks/certificate_bound.py": "--epochs 1 --draws 1",
    "benchmarks/do_no_harm.py": "--tables 1",
    "benchmarks/dropin_cost.py": "--repeats 1 --batches 2 --columns 3",
    "benchmarks/mutation.py": "--mutants 150 --only run_state --tests tests/test_notices.py --out mutation",
    "benchmarks/run.py": "--quick --only lambda --results results.json --docs docs",
    "benchmarks/survey_coverage.py": "--surveys 2",
    "benchmarks/prior_knowledge.py": "--data law_bar --seeds 1 --steps names --out evidence",
}
TABLE = {"--data.target": "hired", "--data.positive": "yes", "--data.related": "[age,zip]"}
TABLE |= {"--data.sensitive": "sex"}
LOANS = "examples/loans"
LOAN_COLUMNS = {"--data.target": "approved", "--data.positive": "yes", "--data.related": "employment,sector"}
_READERS = {"adult": AdultDataModule, "compas": COMPASDataModule}


def small(words: list[str]) -> list[str]:
    """Return the command with the options that make it quick."""
    if any(word.endswith("help") for word in words):
        return words
    return [*words, *next((shlex.split(SMALL[word]) for word in words[:3] if word in SMALL), [])]


def options_of(words: list[str]) -> dict[str, str]:
    """Return the options of a command with their values."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    split = (name.partition("=") if "=" in name else (name, "", value) for name, value in pairs)
    return {name: value for name, _, value in split if name.startswith("--")}


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command, made quick, by this Python and without an account of W&B."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of the data
    words = [sys.executable if word == "python" else word for word in small(words)]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


class Workspace:
    """Folders that commands run in; what several commands need is made once.

    Args:
        shared: Folder of what is made once.
    """

    def __init__(self, shared: Path) -> None:
        self.shared = shared

    def prepare(self, folder: Path, words: list[str]) -> None:
        """Fill an empty folder with what the command names."""
        self._link(folder, words)
        options = options_of(words)
        data = LOANS if LOANS in str(words) else options.get("--data", "adult")
        for word in words:
            target = folder / word
            if found := re.match(r"lightning_logs/version_\d+", word):
                _copy(self.trained(data), folder / found[0])
            elif word.endswith(".ckpt"):
                _copy(self.trained(data) / "checkpoints" / "last.ckpt", target)
            elif word.endswith("audit.json"):
                checkpoint = self.trained("compas") / "checkpoints" / "last.ckpt"
                _copy(self.made("audit", f"audit --data compas --ckpt_path {checkpoint}"), target.parent)
            elif word.endswith(".csv") and "to_parquet" in words:
                _write_table(target, TABLE)
            elif word.endswith((".csv", ".parquet")) and "--groups" in options:
                _write_predictions(target, options)
            elif word.endswith("chosen.yaml"):
                _copy(self.made("sweep_compas", "sweep --data compas") / "chosen.yaml", target)
        _write_inputs(folder, data, options)

    def trained(self, data: str) -> Path:
        """Return the folder of a short run."""
        options = f"--data {data}"
        if data in ("table", LOANS):
            path = "people.csv" if data == "table" else f"{LOANS}/applications.csv"
            columns = TABLE if data == "table" else LOAN_COLUMNS
            options = f"--data table --data.path {path} "
            options += " ".join(f"{name} {value}" for name, value in columns.items())
        return self.made("lightning_logs/version_0", f"fit {options}")

    def made(self, result: str, command: str) -> Path:
        """Run a command once; return the file or folder that it writes."""
        folder = self.shared / re.sub(r"\W+", "_", command)
        if not folder.exists():
            words = ["python", "train.py", *shlex.split(command)]
            self._link(folder, words)
            _write_inputs(folder, "", options_of(words))
            done = run(words, folder)
            assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return folder / result

    @staticmethod
    def _link(folder: Path, words: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        if any(word.startswith("examples/") for word in words):  # a copy: commands may write there
            shutil.copytree(ROOT / "examples", folder / "examples")


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def _write_inputs(folder: Path, data: str, options: dict[str, str]) -> None:
    if (path := options.get("--data.path")) and not (folder / path).exists():
        _write_table(folder / path, options)
    if (path := options.get("--audit_sample")) and data in _READERS:
        _write(_READERS[data](seed=0).read().sample(600, random_state=0), folder / path)
    (folder / "proxies.yaml").write_text(_proxies(data), encoding="utf-8")


def _write_predictions(path: Path, options: dict[str, str]) -> None:
    columns = {options.get("--prob", "prob"): "share", options.get("--target", "target"): "01"}
    columns |= dict.fromkeys(options["--groups"].split(","), "xyz")
    _write(_table(columns), path)


def _write_table(path: Path, options: dict[str, str]) -> None:
    options = options if "--data.target" in options else TABLE
    labels = f"no,{options['--data.positive']}" if "--data.positive" in options else "0,1"
    columns = {"years": "number", "town": "klm", options["--data.target"]: labels}
    columns |= dict.fromkeys(options["--data.related"].strip("[]").split(","), "number")
    columns |= {options.get("--data.sensitive", "sex"): "fm"}
    _write(_table(columns), path)


def _table(columns: dict[str, str], rows: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    kinds = {"number": rng.integers(18, 70, (rows, len(columns))), "share": rng.random((rows, len(columns)))}
    return pd.DataFrame(
        {
            name: kinds[kind][:, number]
            if kind in kinds
            else rng.choice(kind.split(",") if "," in kind else list(kind), rows)
            for number, (name, kind) in enumerate(columns.items())
        }
    )


def _write(table: pd.DataFrame, path: Path) -> None:
    if path.exists():  # a file of examples/
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        path.mkdir()
        for number, part in enumerate(np.array_split(np.arange(len(table)), 3)):
            table.iloc[part].to_parquet(path / f"{number}.parquet")


def _proxies(data: str) -> str:
    if data == "adult":
        page = (ROOT / "docs" / "certificate.md").read_text(encoding="utf-8")
        blocks: list[str] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        return next(text for text in blocks if "share" in text)
    column = {"compas": "decile_score"}.get(data, "age")
    text: str = yaml.safe_dump({"group": "g", "share": [0.3, 0.5], "correlations": {column: [-0.2, 0.2]}})
    return text
