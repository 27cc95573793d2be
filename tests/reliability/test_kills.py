"""SIGKILL at chosen stages of a checkpoint write and at random moments; a resume ends as if nothing happened.

``pytest -m slow tests/reliability`` runs them all and prints the number of kills.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.reliability.runs import SMALL, assert_same_run, kill, resume, resume_args, run

_TABLE = (
    "fit --data table --data.path ../parts --data.target hired --data.positive yes --data.related [age,zip] "
    "--data.sensitive sex --data.batch_size 50 --trainer.max_epochs 4 --lambda_update.every_n_steps 5 "
    "--pretrain.epochs 1 --trainer.accelerator cpu"
)
TABLE = _TABLE.split()
EVERY_6 = ["--checkpoint.every_n_train_steps=6"]  # every second one is at the end of an epoch
EVERY_5 = ["--checkpoint.every_n_train_steps=5"]
RANKS = ["--trainer.devices=2"]
COMMANDS = {
    "epochs": SMALL,
    "steps": [*SMALL, *EVERY_6],
    "odd_steps": [*SMALL, *EVERY_5, "--trainer.accumulate_grad_batches=2"],
    "validations": [*SMALL, "--trainer.val_check_interval=0.25"],
    "ranks": [*SMALL, *RANKS],
    "rank_steps": [*SMALL, *RANKS, *EVERY_5],
    "table": TABLE,
    "table_steps": [*TABLE, *EVERY_5],
    "table_ranks": [*TABLE, *RANKS, *EVERY_5],
}
ORDINARY = [("epochs", "half:4"), ("steps", "renamed:3 batch:8")]
# Moments by case, one after the other: see killed_run.py. Seconds count from the first batch.
SLOW = [
    ("epochs", "start:1"),
    ("epochs", "renamed:1"),
    ("epochs", "start:2 written:2"),
    ("epochs", "synced:4 seconds:0.05"),
    ("epochs", "seconds:0.31"),
    ("epochs", "seconds:0.17 seconds:0.08"),
    ("steps", "batch:10 batch:13 batch:2"),
    ("steps", "half:5 written:1"),
    ("steps", "seconds:0.23 seconds:0.04"),
    ("odd_steps", "synced:2 batch:7"),
    ("odd_steps", "seconds:0.29"),
    ("validations", "renamed:3 batch:5"),
    ("validations", "half:6"),
    ("ranks", "half:3"),
    ("ranks", "seconds:0.12 renamed:1"),
    ("rank_steps", "batch:9 synced:1"),
    ("rank_steps", "seconds:0.07"),
    ("table", "written:3 start:1"),
    ("table", "seconds:0.21"),
    ("table_steps", "batch:16 half:1"),
    ("table_steps", "seconds:0.11 batch:4"),
    ("table_ranks", "batch:8 renamed:1"),
]
ELSEWHERE = ["half:4", "renamed:3 written:1", "seconds:0.14"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for runs, with a directory of Parquet files as their table."""
    folder = tmp_path_factory.mktemp("kills")
    drawn = np.random.default_rng(0)
    age, zipcode, sex = drawn.normal(size=1200), drawn.integers(0, 5, 1200), drawn.integers(0, 2, 1200)
    hired = age + sex + drawn.normal(size=1200) > 0.5
    table = pd.DataFrame({"age": age + sex, "zip": zipcode.astype(str), "skill": drawn.normal(size=1200)})
    table = table.assign(sex=np.where(sex, "m", "f"), hired=np.where(hired, "yes", "no"))
    (folder / "parts").mkdir()
    for number, part in enumerate(np.split(np.arange(1200), 3)):
        table.iloc[part].to_parquet(folder / "parts" / f"{number}.parquet", index=False)
    return folder


def check(case: str, moments: str, base: Path, request: pytest.FixtureRequest, **env: str) -> None:
    """Kill a run at each of the moments, resume it, and compare it with an uninterrupted one."""
    command, whole = COMMANDS[case], base / f"{case}_whole"
    if not whole.exists():
        run(command, whole)
    folder = base / f"{case}_{moments}_{len(env)}".replace(" ", "_").replace(":", "_")
    for moment in moments.split():
        kill(moment, resume_args(command, folder), folder, **env)
    resume(command, folder, **env)
    assert_same_run(folder, whole)
    request.node.user_properties.append(("kills", len(moments.split())))


@pytest.mark.parametrize(("case", "moments"), ORDINARY)
def test_a_killed_run_ends_as_if_nothing_happened(
    case: str, moments: str, base: Path, request: pytest.FixtureRequest
) -> None:
    check(case, moments, base, request)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "moments"), SLOW)
def test_every_kill_is_survived(case: str, moments: str, base: Path, request: pytest.FixtureRequest) -> None:
    check(case, moments, base, request)


@pytest.mark.slow
@pytest.mark.parametrize("moments", ELSEWHERE)
def test_temporary_files_may_be_on_another_file_system(
    moments: str, base: Path, request: pytest.FixtureRequest
) -> None:
    elsewhere = Path("/dev/shm")  # noqa: S108 - another file system is the point
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == base.stat().st_dev:
        pytest.skip(f"{elsewhere} is not another file system here")
    check("epochs", moments, base, request, TMPDIR=str(elsewhere))


def test_the_slow_suite_kills_at_least_forty_times() -> None:
    chains = [moments for _, moments in SLOW] + ELSEWHERE
    assert sum(len(moments.split()) for moments in chains) >= 40
