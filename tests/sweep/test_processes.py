"""Several real processes on one SQLite file; one of them killed."""

import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from fairrf_lightning.cli import main

SCRIPT = Path(__file__).resolve().parents[2] / "train.py"
OPTIONS = ["sweep", "--data", "synthetic", "--data.n_rows", "600", "--seeds", "1", "--plot", "false"]
OPTIONS += ["--heartbeat", "1", "--storage", "sqlite:///shared.db"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *OPTIONS, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def trials_of() -> list[FrozenTrial]:
    try:
        return optuna.load_study(study_name="fairrf", storage="sqlite:///shared.db").trials
    except (KeyError, optuna.exceptions.OptunaError, RuntimeError):
        return []  # not created yet


def wait_until_one_runs() -> None:
    deadline = time.monotonic() + 120
    while not any(trial.state == TrialState.RUNNING and trial.params for trial in trials_of()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_same_command_started_twice_shares_the_work() -> None:
    options = ["--trials", "20", "--batch", "1", "--epochs", "4"]
    processes = [start(*options), start(*options)]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "Pareto front of 20 trials" in out
    trials = trials_of()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(done) == 20
    assert all(trial.state == TrialState.FAIL for trial in trials if trial not in done)
    assert len({trial.user_attrs["process"] for trial in done}) == 2
    assert len({trial.params["eta"] for trial in done}) == 20  # none was drawn twice


def test_trials_of_a_killed_process_are_trained_by_the_next_one() -> None:
    options = ["--trials", "5", "--batch", "3", "--epochs", "60"]
    killed = start(*options)
    wait_until_one_runs()
    killed.kill()
    killed.communicate()
    left = [trial for trial in trials_of() if trial.state == TrialState.RUNNING]
    assert left
    main([*OPTIONS, *options])
    trials = trials_of()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(done) == 5
    assert {trial.state for trial in trials if trial not in done} == {TrialState.FAIL}
    parameters = [trial.params for trial in done]
    assert all(trial.params in parameters for trial in left if trial.params)


def test_workers_of_one_command_share_the_work(capfd: pytest.CaptureFixture[str]) -> None:
    main([*OPTIONS, "--trials", "20", "--batch", "1", "--epochs", "16", "--workers", "2"])
    assert "Pareto front of 20 trials" in capfd.readouterr().out
    done = [trial for trial in trials_of() if trial.state == TrialState.COMPLETE]
    assert len(done) == 20
    assert len({trial.user_attrs["process"] for trial in done}) == 2
