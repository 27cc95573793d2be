"""Grids on real clusters of Dask, Ray and Spark with two workers, of which one is killed in the middle."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from torch import Tensor

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack, run_settings
from paper.plans import ETAS
from paper.reproduce import reproduce

ROOT = Path(__file__).resolve().parents[2]
DATA = partial(SyntheticDataModule, n_rows=1000, batch_size=128)
SETTINGS = [Setting(eta=eta) for eta in (0.1, 0.4, 0.7)]
SHORT = Schedule(epochs=2)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of other projects
]


@pytest.fixture(scope="module", params=["dask", "ray", "spark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a cluster of two workers that finds the tests, and name it where the engine looks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        if request.param == "ray":
            yield from start_ray(patch)
        elif request.param == "spark":
            yield from start_spark(patch, tmp_path_factory.mktemp("spark"))
        else:
            yield from start_dask(patch, tmp_path_factory.mktemp("dask"))


def start_dask(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="needs fairrf-lightning[dask]")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, local_directory=str(folder)) as cluster:
        patch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        # Dask reads the variable when it is imported, which was before.
        with pytest.importorskip("dask").config.set({"scheduler-address": cluster.scheduler_address}):
            yield "dask"


def start_ray(patch: pytest.MonkeyPatch) -> Iterator[str]:
    patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")  # threads of a closed pool would connect again
    ray = pytest.importorskip("ray", reason="needs fairrf-lightning[ray]")
    # Not the folder of pytest: the paths of the sockets must be short.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        patch.setenv("RAY_TMPDIR", folder)
        head = {"num_cpus": 1, "include_dashboard": False}
        cluster = pytest.importorskip("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield "ray"
        finally:
            ray.shutdown()
            cluster.shutdown()


def start_spark(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    """Name a cluster of two workers that each command starts for itself."""
    pytest.importorskip("joblibspark", reason="needs fairrf-lightning[spark]")
    if not shutil.which("java"):
        pytest.skip("needs Java")
    patch.setenv("MASTER", "local-cluster[2,1,1024]")
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    patch.setenv("SPARK_WORKER_DIR", str(folder))
    yield "spark"
    if session := pytest.importorskip("pyspark.sql").SparkSession.getActiveSession():
        session.stop()


def break_elsewhere(seed: int, here: int) -> SyntheticDataModule:
    if seed == 13 and os.getpid() != here:
        raise InputError("the table of seed 13 is broken.")
    return DATA(seed=seed)


def test_an_error_of_the_input_is_that_of_one_process(engine: str) -> None:
    data = partial(break_elsewhere, here=os.getpid())
    with pytest.raises(InputError, match="the table of seed 13 is broken"):
        run_settings(data, [Setting()], [0, 13], SHORT, max_models=1, workers=None, backend=engine)


def unpacked(here: int) -> "Unpackable":
    if os.getpid() != here:
        raise ModuleNotFoundError("No module named 'package_of_the_user'")
    return Unpackable(here)


class Unpackable:
    """Data that another process cannot unpack, as where a package is missing."""

    def __init__(self, here: int) -> None:
        self.here = here

    def __call__(self, seed: int) -> SyntheticDataModule:
        return DATA(seed=seed)

    def __reduce__(self) -> tuple[Callable[[int], "Unpackable"], tuple[int]]:
        return unpacked, (self.here,)


def test_a_task_that_cannot_begin_ends_the_command(engine: str) -> None:
    data = Unpackable(os.getpid())
    with pytest.raises(Exception, match="No module named 'package_of_the_user'"):
        run_settings(data, [Setting()], [0, 1], SHORT, max_models=1, workers=None, backend=engine)


def test_data_that_cannot_be_sent_are_explained(engine: str) -> None:
    if engine == "ray":
        pytest.skip("Ray raises its own error")
    lock = threading.Lock()

    def make_data(seed: int) -> SyntheticDataModule:
        with lock:
            return DATA(seed=seed)

    with pytest.raises(InputError, match=r"cannot pickle '_thread.lock'"):
        run_settings(make_data, [Setting()], [0, 1], SHORT, max_models=1, workers=None, backend=engine)


def run_grid(backend: str, out: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), "grid", "--data", "synthetic", "--data.n_rows", "1000"]
    command += ["--eta", "0.2,0.6", "--seeds", "2", "--epochs", "2", "--plot", "false", "--report", "false"]
    command += ["--max_models", "2", "--backend", backend, "--out", str(out)]
    subprocess.run(command, check=True)


def run_reproduction(backend: str, out: Path) -> None:
    """Run the smallest part of the paper's evaluation that has all its methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ETAS, "compas", (0.3,))
        patch.setattr("paper.plans.ARL_LRS", (0.1,))
        patch.setattr("paper.plans.KSMOTE_ETAS", (0.6,))
        reproduce(only=["compas"], seeds=2, epochs=2, workers=2, backend=backend, out=out)


def rows(folder: Path) -> pd.DataFrame:
    """Return the results as they were written, by key."""
    return pd.read_csv(folder / "results.csv", dtype=str).set_index("key").sort_index()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run both commands on this machine."""
    folder = tmp_path_factory.mktemp("here")
    for run in (run_grid, run_reproduction):
        run("loky", folder / run.__name__)
    assert len(rows(folder / "run_grid")) == 3 * 2
    methods = {"vanilla", "constrain_s", "arl", "ksmote", "remove_r", "fairrf"}
    assert methods <= set(rows(folder / "run_reproduction")["method"])
    return folder


@pytest.mark.parametrize("run", [run_grid, run_reproduction])
def test_commands_give_the_same_rows(
    engine: str, here: Path, tmp_path: Path, run: Callable[[str, Path], None]
) -> None:
    run(engine, tmp_path)
    pd.testing.assert_frame_equal(rows(here / run.__name__), rows(tmp_path), check_like=True)


def die_once(stack: Stack, marker: Path) -> dict[str, Tensor]:
    """Evaluate, but kill the worker that has trained eta 0.4 first."""
    if stack.settings[0].eta == 0.4 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return stack.evaluate()


def die(stack: Stack) -> dict[str, Tensor]:
    del stack
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_a_task_that_kills_each_worker_of_dask_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.importorskip("dask").config.set({"distributed.scheduler.allowed-failures": 0}):
        for _ in start_dask(monkeypatch, tmp_path):
            with pytest.raises(InputError, match=r"workers were killed.*finished models are kept"):
                run_settings(
                    DATA,
                    [Setting()],
                    [0, 1],
                    SHORT,
                    max_models=1,
                    workers=None,
                    backend="dask",
                    evaluate=die,
                )


def test_a_task_that_kills_each_worker_of_spark_is_an_error(engine: str) -> None:
    if engine != "spark":
        pytest.skip("only Spark gives up a task here")
    with pytest.raises(InputError, match=r"workers were killed.*finished models are kept"):
        run_settings(
            DATA, [Setting()], [0, 1], SHORT, max_models=1, workers=None, backend=engine, evaluate=die
        )


# The last one: joblib computes here while a cluster has one worker only.
def test_a_killed_worker_loses_nothing_and_results_are_equal_to_the_last_digit(
    engine: str, tmp_path: Path
) -> None:
    alone = run_settings(DATA, SETTINGS, [0, 1], SHORT, max_models=2)
    marker, steps = tmp_path / "killed", list[int]()
    shared = run_settings(
        DATA,
        SETTINGS,
        [0, 1],
        SHORT,
        path=tmp_path / "results.csv",
        max_models=2,
        workers=None,
        backend=engine,
        evaluate=partial(die_once, marker=marker),
        advance=steps.append,
    )
    assert marker.exists()
    assert sum(steps) == 3 * 2 * 2
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)
