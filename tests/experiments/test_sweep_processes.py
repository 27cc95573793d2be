"""Several real processes on one SQLite file; one of them killed."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, Trial, TrialState

from fairrf_lightning.cli import main
from fairrf_lightning.experiments import sweep
from fairrf_lightning.experiments.study import TrialQueue

SCRIPT = Path(__file__).resolve().parents[2] / "train.py"
OPTIONS = ["sweep", "--data", "synthetic", "--data.n_rows", "600", "--seeds", "1", "--plot", "false"]
OPTIONS += ["--heartbeat", "1", "--storage", "sqlite:///shared.db"]


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


def wait_until_one_runs(process: subprocess.Popen[str]) -> None:
    while not any(trial.state == TrialState.RUNNING and trial.params for trial in trials_of()):
        assert process.poll() is None, "it ended before a trial was seen to run"
        time.sleep(0.02)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process join in when another one has begun: both then have a part in it."""
    ask = TrialQueue.ask

    def ask_second(self: TrialQueue, most: int, heartbeats: ExitStack) -> list[Trial]:
        return ask(self, most, heartbeats) if self.known() else []

    monkeypatch.setattr(TrialQueue, "ask", ask_second)
    monkeypatch.setattr(sweep, "_PAUSE", 0.05)


def assert_shared(number: int) -> None:
    trials = trials_of()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(done) == number
    assert all(trial.state == TrialState.FAIL for trial in trials if trial not in done)
    assert len({trial.user_attrs["process"] for trial in done}) == 2
    assert len({trial.params["eta"] for trial in done}) == number  # no trial was drawn twice


@pytest.mark.usefixtures("second")
def test_the_same_command_started_twice_shares_the_work() -> None:
    options = ["--trials", "6", "--batch", "1", "--epochs", "4"]
    other = start(*options)
    main([*OPTIONS, *options])
    out, err = other.communicate(timeout=300)
    assert other.returncode == 0, err
    assert "Pareto front of 6 trials" in out
    assert_shared(6)


@pytest.mark.usefixtures("second")
def test_workers_of_one_command_share_the_work(capfd: pytest.CaptureFixture[str]) -> None:
    main([*OPTIONS, "--trials", "6", "--batch", "1", "--epochs", "4", "--workers", "2"])
    assert "Pareto front of 6 trials" in capfd.readouterr().out
    assert_shared(6)


def test_trials_of_a_killed_process_are_trained_by_the_next_one() -> None:
    options = ["--trials", "4", "--batch", "3", "--epochs", "60"]
    killed = start(*options)
    wait_until_one_runs(killed)
    killed.kill()
    killed.communicate()
    left = [trial for trial in trials_of() if trial.state == TrialState.RUNNING]
    assert left
    main([*OPTIONS, *options])
    trials = trials_of()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(done) == 4
    assert {trial.state for trial in trials if trial not in done} == {TrialState.FAIL}
    for trial in left:  # the last one may have been killed before it had drawn all its parameters
        assert any(trial.params.items() <= other.params.items() for other in done)
