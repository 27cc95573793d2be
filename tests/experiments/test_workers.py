"""Results are identical for any number of workers, which end together and keep what is finished."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import pytest
import torch
from joblib.externals.loky import reusable_executor

from fairrf_lightning.cli.tables import resumable
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, run_settings
from fairrf_lightning.experiments.run import Job, run_jobs
from fairrf_lightning.experiments.workers import _Progress, default_num_workers
from fairrf_lightning.methods import KSMOTE

DATA = partial(SyntheticDataModule, n_rows=1000, batch_size=128)
SHORT, ENDLESS = Schedule(epochs=2), Schedule(epochs=1_000_000)


def test_results_are_identical_for_any_number_of_workers(tmp_path: Path) -> None:
    fair = [Setting(eta=eta) for eta in (0.1, 0.4, 0.7)]
    arl = [Setting(eta=0.0, adversary_lr=lr, pretrain_steps=3, method="arl") for lr in (0.1, 1.0)]
    jobs = [
        Job(DATA, [*fair, *arl], [0, 1], SHORT, weight=3),
        Job(partial(DATA, ksmote=KSMOTE(n_clusters=2)), fair[:2], [0, 1], SHORT),
        Job(lambda seed: DATA(seed=seed), fair[1:], [1, 0], SHORT),
    ]
    alone = run_jobs(jobs, max_models=4)
    steps: list[int] = []
    path = tmp_path / "results.csv"
    shared = run_jobs(jobs, max_models=4, workers=2, path=path, advance=steps.append)
    for one, other in zip(alone, shared, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert len(pd.read_csv(path)) == 5 * 2 + 2 * 2, "a model of two jobs is trained once"
    assert sum(steps) == sum(job.work for job in jobs)
    assert steps[0] == 2 * 2 * 2, "the models that need no training"


def data_that_break(seed: int, *, after: str, kill: bool = False) -> SyntheticDataModule:
    """Return data, but for seed 13: wait for the file, then break, or kill the process."""
    if seed == 13:
        while not Path(after).is_file():
            time.sleep(0.05)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise InputError("the table of seed 13 is broken.")
    return DATA(seed=seed)


def test_an_error_ends_all_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    jobs = [
        Job(DATA, [Setting()], [1], ENDLESS),
        Job(partial(data_that_break, after=str(path)), [Setting()], [0, 13], SHORT),
    ]
    with pytest.raises(InputError, match="the table of seed 13 is broken"):
        run_jobs(jobs, path=path, max_models=1, workers=2)
    assert pd.read_csv(path)["seed"].tolist() == [0]


@contextmanager
def listening_to_ctrl_c() -> Iterator[None]:
    """Undo what a shell does to processes in the background: they, and their children, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_ends_several_processes_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.csv"
    jobs = [Job(DATA, [Setting()], [0], SHORT, weight=10**9), Job(DATA, [Setting()], [1, 2], ENDLESS)]

    def press_once_a_model_is_finished() -> None:
        while not path.is_file():
            time.sleep(0.05)
        workers = list(reusable_executor._executor._processes)
        for pid in (*workers, os.getpid()):
            os.kill(pid, signal.SIGINT)

    threading.Thread(target=press_once_a_model_is_finished).start()
    with listening_to_ctrl_c(), pytest.raises(SystemExit) as exit_info, resumable(path):
        run_jobs(jobs, path=path, max_models=1, workers=2)
    assert exit_info.value.code == 130
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.startswith(f"Interrupted: finished models are in {path}")
    assert "Traceback" not in printed
    assert pd.read_csv(path)["seed"].tolist() == [0]
    more = run_settings(DATA, [Setting()], [3, 4], SHORT, max_models=1, workers=2)
    assert len(more) == 2, "the workers are free again"


def test_ctrl_c_in_a_single_process_keeps_what_is_finished(tmp_path: Path) -> None:
    path, threads = tmp_path / "results.csv", torch.get_num_threads()

    def press(_: int) -> None:
        if path.is_file():
            signal.raise_signal(signal.SIGINT)

    with listening_to_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            run_settings(DATA, [Setting()], [0, 1], SHORT, path=path, max_models=1, advance=press)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Lightning would ignore it"
    assert pd.read_csv(path)["seed"].tolist() == [0]
    assert torch.get_num_threads() == threads


def test_a_killed_worker_is_explained_and_what_is_finished_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    data = partial(data_that_break, after=str(path), kill=True)
    with pytest.raises(InputError, match="run again with fewer workers"):
        run_jobs([Job(data, [Setting()], [0, 13], SHORT)], path=path, max_models=1, workers=2)
    assert pd.read_csv(path)["seed"].tolist() == [0]
    steps: list[int] = []
    again = run_settings(DATA, [Setting()], [0, 13], SHORT, path=path, advance=steps.append)
    assert steps == [2, 1, 1], "the finished model is not trained again"
    assert again["seed"].tolist() == [0, 13]


def test_an_exit_that_is_no_interruption_stays_one() -> None:
    def leave(work: int) -> None:
        if work:
            sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        run_settings(DATA, [Setting()], [0], SHORT, advance=leave)


def test_data_that_cannot_be_sent_are_explained() -> None:
    lock = threading.Lock()

    def make_data(seed: int) -> SyntheticDataModule:
        with lock:
            return DATA(seed=seed)

    with pytest.raises(InputError, match=r"cannot pickle '_thread.lock'.*workers=1"):
        run_settings(make_data, [Setting()], [0, 1], SHORT, max_models=1, workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers = 0"),
        ({"backend": "lokey"}, "did you mean 'loky'"),
        ({"backend": "ray", "workers": 2}, r"ray is not installed; run: pip install .*\[ray\]"),
    ],
)
def test_workers_and_backend_are_checked(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=message):
        run_settings(DATA, [Setting()], [0, 1], SHORT, max_models=1, **options)


def test_the_default_number_of_workers_depends_on_the_work() -> None:
    assert default_num_workers(10_000) == 1, "the start of a process would take longer"
    assert default_num_workers(10**9) == joblib.cpu_count()


def test_progress_never_goes_back(tmp_path: Path) -> None:
    job = Job(DATA, [Setting(eta=0.1)], [0], SHORT)
    steps: list[int] = []
    progress = _Progress(tmp_path, [job], steps.append)
    progress.show(0, 2)
    progress.show(0, 0)  # read after the folder was deleted
    assert sum(steps) == job.work
