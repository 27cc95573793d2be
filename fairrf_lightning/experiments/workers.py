"""Train jobs in this process or in others, with joblib's backends.

Each process trains with one thread: two processes of one thread are about twice as fast as one of two
threads, because the matrices are small. It also makes results identical for any number of workers.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import joblib
import torch

from fairrf_lightning.errors import InputError
from fairrf_lightning.messages import install_command

if TYPE_CHECKING:
    from fairrf_lightning.experiments.run import Job, Model, Row

_MIN_STEPS = 20_000  # of one model: 15 seconds of work, twice what the start of a process takes
_LOGGER = "lightning.pytorch"
_POLL_SECONDS = 0.2
_MAX_SPARK_TASKS = 256  # at once, if no number of workers is given; Spark queues what finds no core
_KILLED_BY_SPARK = re.compile("Job aborted .*(worker exited unexpectedly|ExecutorLostFailure)")
# Backends of joblib, with their options. Dask and Spark move the tasks of a dead worker, Ray if asked to.
BACKENDS: dict[str, dict[str, Any]] = {
    "loky": {},
    "dask": {},
    "ray": {"ray_remote_args": {"num_cpus": 1, "max_restarts": 3, "max_task_retries": 3}},
    "spark": {},
}

Advance: TypeAlias = Callable[[int], None]


def default_num_workers(model_steps: int) -> int:
    """Return the number of workers that is worth starting for this many training steps of one model."""
    cores: int = joblib.cpu_count()
    return max(1, min(cores, model_steps // _MIN_STEPS))


def train_jobs(
    jobs: Sequence[Job], workers: int | None, backend: str, advance: Advance
) -> Generator[tuple[int, dict[Model, Row]]]:
    """Yield the number and the metrics of each job as it is finished; closed early, it ends the workers.

    The arguments are those of :func:`~fairrf_lightning.experiments.run.run_jobs`.
    """
    if backend == "loky":
        workers = min(workers or joblib.cpu_count(), len(jobs))
    if workers == 1 or not jobs:
        return _train_here(jobs, advance)
    return _train_in_parallel(jobs, workers, backend, advance)


def _train_here(jobs: Sequence[Job], advance: Advance) -> Generator[tuple[int, dict[Model, Row]]]:
    before = torch.get_num_threads()
    handler = signal.getsignal(signal.SIGINT)
    torch.set_num_threads(1)
    try:
        for number, job in enumerate(jobs):
            yield number, job.train(advance)
    except SystemExit as error:
        # Lightning turns Ctrl-C into an exit and makes the process ignore the next one.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from error
    finally:
        torch.set_num_threads(before)


def _train_in_worker(
    number: int, job: Job, file: Path, *, backend: str, log_level: int, filters: Sequence[Any]
) -> tuple[int, dict[Model, Row]]:
    """Train a job in another process, as quiet as its parent; ``file`` grows by a byte per epoch."""
    logging.getLogger(_LOGGER).setLevel(log_level)
    warnings.resetwarnings()
    warnings.filters.extend(filters)  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    parent = os.getppid()

    def advance(_: int) -> None:
        if backend == "loky" and os.getppid() != parent:  # it was killed, and this one would train on
            os._exit(1)
        with suppress(OSError), file.open("a") as opened:  # not seen on other machines
            opened.write(".")

    return number, job.train(advance)


class _Progress:
    """Passes on the work that workers report, from a thread."""

    def __init__(self, folder: Path, jobs: Sequence[Job], advance: Advance) -> None:
        self._folder, self._jobs, self._advance = folder, jobs, advance
        self._shown = [0] * len(jobs)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def show(self, number: int, epochs: int) -> None:
        with self._lock:
            new = min(epochs, self._jobs[number].schedule.epochs) - self._shown[number]
            if new > 0:  # a job may be trained again, after its worker was killed
                self._shown[number] += new
                self._advance(new * self._jobs[number].epoch_work)

    def _follow(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            for number in range(len(self._jobs)):
                path = self._folder / str(number)
                self.show(number, path.stat().st_size if path.is_file() else 0)

    def __enter__(self) -> _Progress:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _train_in_parallel(
    jobs: Sequence[Job], workers: int | None, backend: str, advance: Advance
) -> Generator[tuple[int, dict[Model, Row]]]:
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _cluster(backend),
        _Progress(Path(folder), jobs, advance) as progress,
        _errors_explained(),
    ):
        with joblib.parallel_config(backend, n_jobs=workers or -1, **BACKENDS[backend]):
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
        with _ignoring_ctrl_c():  # the workers inherit it: this process alone decides
            level, filters = logging.getLogger(_LOGGER).level, tuple(warnings.filters)
            train = partial(_train_in_worker, backend=backend, log_level=level, filters=filters)
            outcomes = parallel(
                joblib.delayed(train)(n, job, Path(folder, str(n))) for n, job in enumerate(jobs)
            )
        with closing(outcomes):
            for number, metrics in outcomes:
                progress.show(number, jobs[number].schedule.epochs)
                yield number, metrics


@contextmanager
def _cluster(backend: str) -> Iterator[None]:
    """Connect to the cluster of a backend, or start one on this machine."""
    try:
        if backend == "ray":
            own = import_module("ray.util.joblib.ray_backend").RayBackend  # it reads RAY_ADDRESS
            # Ray inherits this from joblib's own pool, which cannot return results as they come; Ray's can.
            joblib.register_parallel_backend("ray", type("_Ray", (own,), {"supports_return_generator": True}))
        dask = import_module("distributed") if backend == "dask" else None
        if backend == "spark":  # it reads MASTER
            joblib.register_parallel_backend("spark", _spark_backend())
            session = import_module("pyspark.sql").SparkSession.builder
            session.config("spark.ui.showConsoleProgress", "false").getOrCreate()  # there is ours
    except ImportError as error:
        raise InputError(f"--backend {backend} is not installed; run: {install_command(backend)}") from error
    if dask:
        joblib.register_parallel_backend("dask", _dask_backend())
    try:
        with dask.Client() if dask else nullcontext():  # it reads DASK_SCHEDULER_ADDRESS
            yield
    except Exception as error:
        by_dask = dask and isinstance(error, dask.KilledWorker)
        if not by_dask and not (backend == "spark" and _KILLED_BY_SPARK.search(str(error))):
            raise
        raise InputError(
            "a task was given up because its workers were killed, perhaps because memory ran out: run again "
            "with a smaller --max_models; finished models are kept."
        ) from error


def _dask_backend() -> type:
    """Return joblib's backend for Dask, in which tasks are unpacked where they run and all errors arrive.

    A Dask worker unpacks a task in the thread that talks to the scheduler. The imports of a task would
    silence this thread, and an error there would end the worker. joblib passes on what a task raises, but
    would wait forever for a task that Dask itself has given up.
    """
    pack = import_module("cloudpickle").dumps
    own: type = import_module("joblib._dask").DaskDistributedBackend

    # Not a function of this module, because Dask would import the module to unpack it.
    def unpack_and_call(packed: bytes) -> object:
        from pickle import loads  # noqa: PLC0415 - sent without its globals

        function, args, kwargs = loads(packed)  # noqa: S301 - our own bytes
        return function(*args, **kwargs)

    def submit(self: Any, batch: Any, callback: Callable[[object], None]) -> Future[Any]:
        try:
            items: list[Any] = [(unpack_and_call, (pack(item),), {}) for item in batch.items]
        except (AttributeError, TypeError) as error:
            raise pickle.PicklingError(str(error)) from error
        future: Future[Any] = own.submit(self, SimpleNamespace(items=items), callback)  # type: ignore[attr-defined]
        future.add_done_callback(lambda done: callback(done.exception()) if done.exception() else None)
        return future

    return type("_Dask", (own,), {"submit": submit})


def _spark_backend() -> type:
    """Return joblib's backend for Spark, in which results arrive as tasks end, and errors as they are raised.

    joblib-spark returns results after the last task. Spark would run a task that raises four times, and then
    raise its own error, of which ours is a part of the text.
    """
    pack = import_module("cloudpickle").dumps
    own: type = import_module("joblibspark.backend").SparkDistributedBackend
    pool: type = import_module("joblib._parallel_backends").PoolManagerMixin

    def submit(self: Any, batch: Any, callback: Callable[[object], None]) -> Any:
        try:
            packed = pack(batch)
        except (AttributeError, TypeError) as error:
            raise pickle.PicklingError(str(error)) from error

        def unpack_and_call() -> object:
            try:
                return pickle.loads(packed)()  # noqa: S301 - our own bytes
            except Exception as error:  # noqa: BLE001 - raised by joblib where the result arrives
                return error

        return own.apply_async(self, unpack_and_call, callback)  # type: ignore[attr-defined]

    def terminate(self: Any) -> None:
        own.terminate(self)  # type: ignore[attr-defined]
        pool.terminate(self)  # type: ignore[attr-defined]

    return type(
        "_Spark",
        (own,),
        {
            "supports_retrieve_callback": True,
            "supports_return_generator": True,
            # The cores of a cluster are not known while it starts.
            "effective_n_jobs": lambda _, n_jobs: n_jobs if n_jobs > 0 else _MAX_SPARK_TASKS,
            "retrieve_result_callback": pool.retrieve_result_callback,  # type: ignore[attr-defined]
            "submit": submit,
            "terminate": terminate,
        },
    )


@contextmanager
def _errors_explained() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # An error or Ctrl-C ends the workers; joblib advises to have them do less.
            warnings.filterwarnings("ignore", message=".*have been cancelled")
            warnings.filterwarnings("ignore", module="joblibspark|pyspark")  # of its own internals
            yield
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process was killed, perhaps because memory ran out: run again with fewer workers; "
            "finished models are kept."
        ) from error
    except pickle.PicklingError as error:
        reason = str(error.__cause__ or error).strip().strip('"').strip().splitlines()[-1]
        raise InputError(
            f"the data module cannot be sent to another process ({reason}): "
            "remove what cannot be pickled from its arguments, or use workers=1."
        ) from error


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
