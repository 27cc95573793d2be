"""Several processes change no figure, and end together, keeping what is finished."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, run_settings
from fairrf_lightning.experiments.job import Row
from fairrf_lightning.experiments.runner import Request, run_requests
from fairrf_lightning.experiments.workers import available_cores, collect, worthwhile_workers
from fairrf_lightning.methods import KSMOTE

DATA = partial(SyntheticDataModule, n_rows=1000, batch_size=128)
SHORT, ENDLESS = Schedule(epochs=2), Schedule(epochs=1_000_000)
ROOT = Path(__file__).parents[2]


def test_figures_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    fair = [Setting(eta=eta) for eta in (0.1, 0.4, 0.7)]
    arl = [Setting(eta=0.0, adversary_lr=lr, pretrain_steps=3, method="arl") for lr in (0.1, 1.0)]
    requests = [
        Request(DATA, [*fair, *arl], [0, 1], SHORT, weight=3),
        Request(partial(DATA, ksmote=KSMOTE(n_clusters=2)), fair[:2], [0, 1], SHORT),
        Request(DATA, fair[1:], [1, 0], SHORT),
    ]
    alone = run_requests(requests, max_models=4)
    steps: list[int] = []
    path = tmp_path / "results.csv"
    shared = run_requests(requests, max_models=4, workers=2, path=path, advance=steps.append)
    for one, other in zip(alone, shared, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert len(pd.read_csv(path)) == 5 * 2 + 2 * 2, "what two requests ask for is trained once"
    assert sum(steps) == sum(request.work for request in requests)
    assert steps[0] == 2 * 2 * 2, "the models that need no training"


def data_that_break(seed: int, *, after: str) -> SyntheticDataModule:
    """Return data, but for seed 13: wait for the file, then break."""
    if seed == 13:
        while not Path(after).is_file():
            time.sleep(0.05)
        raise InputError("the table of seed 13 is broken.")
    return DATA(seed=seed)


def test_an_error_ends_all_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    requests = [
        Request(DATA, [Setting()], [1], ENDLESS),
        Request(partial(data_that_break, after=str(path)), [Setting()], [0, 13], SHORT),
    ]
    with pytest.raises(InputError, match="the table of seed 13 is broken"):
        run_requests(requests, path=path, max_models=1, workers=2)
    assert pd.read_csv(path)["seed"].tolist() == [0]


def test_a_killed_worker_is_explained_after_finished_rows_are_kept() -> None:
    good: Future[list[Row]] = Future()
    good.set_result([{"seed": 0}])
    killed: Future[list[Row]] = Future()
    killed.set_exception(BrokenProcessPool())
    kept: list[list[Row]] = []
    waiting = {good, killed}
    with pytest.raises(InputError, match="run again with fewer workers"):
        collect({good, killed}, waiting, kept.append)
    assert kept == [[{"seed": 0}]]
    assert not waiting


@contextmanager
def listening_to_ctrl_c() -> Iterator[None]:
    """Undo what a shell does to processes in the background: they, and their children, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_grid_of_several_processes_in_one_line(tmp_path: Path) -> None:
    # Two settings' worth of seeds are too many for one stack: four stacks, of which two come first.
    options = "--data synthetic --data.n_rows 1000 --epochs 20 --eta 0.1,0.2,0.3 --seeds 45 --workers 2"
    command = [sys.executable, str(ROOT / "train.py"), "grid", *options.split(), "--out", str(tmp_path)]
    with listening_to_ctrl_c():
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
    results = tmp_path / "results.csv"
    while not results.is_file() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert f"Interrupted: finished models are in {results}" in " ".join(printed.split())
    assert "Traceback" not in printed
    assert len(pd.read_csv(results)) in (45, 90, 135)
    assert _is_gone(process.pid)


def _is_gone(group: int, seconds: float = 30) -> bool:
    """Tell whether all processes of the group end in time."""
    for _ in range(int(seconds / 0.1)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_in_a_single_process_keeps_what_is_finished(tmp_path: Path) -> None:
    path, threads = tmp_path / "results.csv", torch.get_num_threads()

    def press(_: int) -> None:
        if path.is_file():
            signal.raise_signal(signal.SIGINT)

    with listening_to_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            run_settings(DATA, [Setting()], [0, 1], SHORT, path=path, max_models=1, advance=press)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Lightning would leave it deaf"
    assert pd.read_csv(path)["seed"].tolist() == [0]
    assert torch.get_num_threads() == threads


def test_an_exit_that_is_no_interruption_stays_one() -> None:
    def leave(work: int) -> None:
        if work:
            sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        run_settings(DATA, [Setting()], [0], SHORT, advance=leave)


def test_data_that_cannot_be_sent_are_explained() -> None:
    with pytest.raises(InputError, match="workers=1"):
        run_settings(lambda seed: DATA(seed=seed), [Setting()], [0, 1], SHORT, max_models=1, workers=2)


def test_the_number_of_workers_is_checked() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert worthwhile_workers(10_000) == 1, "the start of a process would take longer"
    assert worthwhile_workers(10**9) == available_cores()
    with pytest.raises(InputError, match="workers = 0"):
        run_settings(DATA, [Setting()], [0], SHORT, workers=0)
