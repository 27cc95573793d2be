"""Sweeps of two machines that share nothing but a journal or a PostgreSQL server; one of them killed."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import optuna
import pytest
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fairrf_lightning.experiments.study import HeartbeatJournal

SCRIPT = Path(__file__).resolve().parents[2] / "train.py"
OPTIONS = ["sweep", "--data", "synthetic", "--data.n_rows", "600", "--seeds", "1", "--plot", "false"]
OPTIONS += ["--heartbeat", "1", "--trials", "6", "--batch", "2", "--epochs", "40"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:Heartbeat of storage"),
]


@pytest.mark.parametrize("beats", [False, True])
def test_a_journal_takes_over_trials_without_a_heartbeat(*, beats: bool, tmp_path: Path) -> None:
    def open_journal() -> optuna.Study:
        retry = RetryHeartbeatStaleTrialCallback(max_retry=3)
        storage = HeartbeatJournal(tmp_path / "journal.log", interval=1, grace_period=0, retry=retry)
        return optuna.create_study(study_name="mine", storage=storage, load_if_exists=True)

    dead, alive = open_journal(), open_journal()
    trial = dead.ask()
    trial.suggest_float("eta", 0, 1)
    fail_stale_trials(alive)
    assert [other.state for other in alive.trials] == [TrialState.RUNNING], "seen for the first time"
    if beats:
        dead._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
    fail_stale_trials(alive)
    states = [TrialState.RUNNING] if beats else [TrialState.FAIL, TrialState.WAITING]
    assert [other.state for other in alive.trials] == states
    assert beats or alive.ask().suggest_float("eta", 0, 1) == trial.params["eta"]


def _programs() -> Path:
    """Return the folder of the server's programs, which Debian keeps out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    return folders[-1]


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server with a data folder of its own, and yield its address."""
    pytest.importorskip("psycopg", reason="needs fairrf-lightning[postgres]")
    programs, folder = _programs(), Path(mkdtemp())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root
    if user:
        shutil.chown(folder, user)

    def run(program: str, *options: str) -> None:
        command = [str(programs / program), "-D", str(folder / "data"), *options]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--username", "fairrf", "--auth", "trust")
    run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", f"-p {port} -h 127.0.0.1 -k {folder}")
    try:
        yield f"postgresql+psycopg://fairrf@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "stop", "-m", "immediate")
        shutil.rmtree(folder)


@pytest.fixture(params=["journal", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "journal":
        yield f"journal:///{tmp_path / 'journal.log'}"
        return
    with postgres_server() as server:
        yield server


def trials_of(address: str) -> list[FrozenTrial]:
    if address.startswith("journal"):
        storage = JournalStorage(JournalFileBackend(address.removeprefix("journal:///")))
        return optuna.load_study(study_name="fairrf", storage=storage).trials
    database = RDBStorage(address)
    try:
        return optuna.load_study(study_name="fairrf", storage=database).trials
    finally:
        database.remove_session()
        database.engine.dispose()


def count_running(address: str) -> int:
    """Return the number of running trials, without a part in the creation of the tables."""
    if address.startswith("journal"):
        with suppress(KeyError):  # not created yet
            return sum(trial.state == TrialState.RUNNING for trial in trials_of(address))
        return 0
    engine = create_engine(address, poolclass=NullPool)
    with suppress(SQLAlchemyError), engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM trials WHERE state = 'RUNNING'"))
        return int(rows.scalar_one())
    return 0


def start(storage: str, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    command = [sys.executable, str(SCRIPT), *OPTIONS, "--storage", storage]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_trials_of_a_killed_machine_are_taken_over(address: str, tmp_path: Path) -> None:
    killed, other = (start(address, tmp_path / name) for name in ("killed", "other"))
    deadline = time.monotonic() + 200
    while count_running(address) < 4:
        assert time.monotonic() < deadline, "both should work on two trials each"
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    output, _ = other.communicate(timeout=300)
    assert other.returncode == 0, output
    assert "Pareto front of 6 trials" in output
    trials = trials_of(address)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    lost = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert (len(done), len(lost), len(trials)) == (6, 2, 8)
    assert {trial.user_attrs["process"].partition(":")[2] for trial in done} == {str(other.pid)}
    again = {RetryHeartbeatStaleTrialCallback.retried_trial_number(trial): trial.params for trial in done}
    assert all(again[trial.number].items() >= trial.params.items() for trial in lost)
