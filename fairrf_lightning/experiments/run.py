"""Train many models: settings times seeds, sorted into stacks, in one process or in parallel.

Each process trains with one thread: two processes of one thread are about twice as fast as one of two
threads, because the matrices are small. It also makes results identical for any number of workers.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import joblib
import pandas as pd
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least, did_you_mean
from fairrf_lightning.experiments.results import KEY, ResultsFile, data_identity, model_identity
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stack import MakeData, Stack
from fairrf_lightning.messages import install_command

# 125 models train at 30 model-epochs per second in one stack, at 28 in two: few enough to keep both cores
# busy, many enough to be fast. It must not depend on the number of workers, or results would.
MAX_MODELS = 80
_MIN_STEPS = 20_000  # of one model: 15 seconds of work, twice what the start of a process takes
_LOGGER = "lightning.pytorch"
_POLL_SECONDS = 0.2
# Backends of joblib, with their options. Dask itself moves the tasks of a dead worker, Ray if it is asked to.
_BACKENDS: dict[str, dict[str, Any]] = {
    "loky": {},
    "dask": {},
    "ray": {"ray_remote_args": {"num_cpus": 1, "max_restarts": 3, "max_task_retries": 3}},
}

Advance: TypeAlias = Callable[[int], None]
Evaluate: TypeAlias = Callable[[Stack], dict[str, Tensor]]
Row: TypeAlias = dict[str, Any]
Model: TypeAlias = tuple[Setting, int]  # with its seed
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Job:
    """Settings to train with seeds on data; :func:`run_settings` has the same arguments."""

    make_data: MakeData
    settings: Sequence[Setting]
    seeds: Sequence[int]
    schedule: Schedule = field(default_factory=Schedule)
    weight: int = 1  # work of an epoch of one model, relative to other jobs; for example its steps
    evaluate: Evaluate = Stack.evaluate

    def __post_init__(self) -> None:
        epochs, without = self.schedule.epochs, self.schedule.pretrain_epochs
        if without >= epochs and any(setting.eta for setting in self.settings):
            raise InputError(
                f"epochs = {epochs}, pretrain_epochs = {without}: no epoch is left for the penalty, so that "
                "every eta would give the vanilla model. Raise epochs or lower pretrain_epochs."
            )

    @property
    def epoch_work(self) -> int:
        """Work of one epoch of all models, in units of ``weight``."""
        return len(self.settings) * len(self.seeds) * self.weight

    @property
    def work(self) -> int:
        """Work of all epochs."""
        return self.epoch_work * self.schedule.epochs

    def identities(self) -> dict[Model, Row]:
        """Return the identity of each model, in the order of settings and seeds."""
        data = self.make_data(seed=0)
        data.prepare_data()
        known = data_identity(data)
        models = [(setting, seed) for setting in self.settings for seed in self.seeds]
        return {model: model_identity(known, data, *model, self.schedule) for model in models}

    def stacks(self, models: Sequence[Model], max_models: int) -> Iterator[Job]:
        """Yield jobs of one stack each that train these of its models."""
        if not models:
            return
        # KSMOTE adds a different number of rows in each split, so its seeds cannot share batches.
        is_ksmote = self.make_data(seed=0).ksmote is not None
        for seeds in [[seed] for seed in self.seeds] if is_ksmote else [self.seeds]:
            for settings, some in plan_stacks([model for model in models if model[1] in seeds], max_models):
                yield replace(self, settings=settings, seeds=some)

    def train(self, advance: Advance) -> dict[Model, Row]:
        """Train the models of one stack and return their metrics; ``advance`` gets the work of each epoch."""
        stack = Stack(self.make_data, self.settings, self.seeds, self.schedule)
        stack.fit([LambdaCallback(on_train_epoch_end=lambda *_: advance(self.epoch_work))])
        return dict(_metrics(stack, self.evaluate(stack)))


def _metrics(stack: Stack, values: dict[str, Tensor]) -> Iterator[tuple[Model, Row]]:
    data, penalty = stack.data.parts[0], stack.module.penalty
    for p, setting in enumerate(stack.settings):
        related = setting.related_in(data)
        others = {f"penalty/{name}" for name in penalty.feature_names if name not in related}
        for s, seed in enumerate(stack.seeds):
            best = int(stack.best.best_epoch[s, p])
            row: Row = {"best_epoch": best, "method_steps": _method_steps(stack, setting, best)}
            row |= {
                name: float(value[s, p])
                for name, value in values.items()
                if name.split("_", 1)[1] not in others
            }
            weights = zip(penalty.feature_names, penalty.weights[s, p].tolist(), strict=True)
            # Without a penalty lambda has no meaning.
            row |= {f"lambda/{name}": w for name, w in weights if name in related and setting.eta > 0}
            yield (setting, seed), row


def _method_steps(stack: Stack, setting: Setting, best_epoch: int) -> int:
    """Return the number of steps with the penalty or the adversary on, up to the kept epoch."""
    steps = len(stack.data.train_dataloader())
    if not setting.eta and not setting.adversary_lr:
        return 0
    start = stack.schedule.pretrain_epochs * steps if setting.eta else setting.pretrain_steps or 0
    return max(0, (best_epoch + 1) * steps - start)


def plan_stacks(models: Sequence[Model], max_models: int) -> Iterator[tuple[list[Setting], list[int]]]:
    """Yield settings and seeds of about equally large stacks, each with one :class:`StackConfig`."""
    check_at_least(1, max_models=max_models)
    seeds_of: dict[Setting, list[int]] = defaultdict(list)
    for setting, seed in models:
        seeds_of[setting].append(seed)
    groups: dict[tuple[StackConfig, tuple[int, ...]], list[Setting]] = defaultdict(list)
    for setting, seeds in seeds_of.items():
        groups[setting.stack_config, tuple(seeds)].append(setting)
    for (_, all_seeds), settings in groups.items():
        for some in _even_parts(all_seeds, max_models):
            for chunk in _even_parts(settings, max_models // len(some)):
                yield list(chunk), list(some)


def _even_parts(items: Sequence[_Item], max_size: int) -> list[Sequence[_Item]]:
    number = -(-len(items) // max_size)
    ends = [-(-len(items) * part // number) for part in range(number + 1)]
    return [items[first:last] for first, last in pairwise(ends)]


def run_settings(
    make_data: MakeData,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    schedule: Schedule | None = None,
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = MAX_MODELS,
    workers: int | None = 1,
    backend: str = "loky",
    evaluate: Evaluate = Stack.evaluate,
) -> pd.DataFrame:
    """Train each setting with each seed and return one row per model.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same :class:`StackConfig` train as one stack.
        seeds: Each seed determines a split, an order of batches and an initialisation.
        schedule: Length and learning rate of training.
        path: CSV file of the results; see :func:`run_jobs` for this and the next four.
        advance: Called with a number of model-epochs when they are done.
        max_models: Maximum number of models in a stack.
        workers: Number of stacks trained in parallel.
        backend: Backend of joblib.
        evaluate: Returns the metrics of a trained stack, ``(S, P)`` by name.

    Returns:
        Columns of the setting, ``seed``, ``best_epoch``, ``method_steps`` (with the penalty or the adversary
        on, up to that epoch), ``val_...`` and ``test_...`` metrics of the best epoch, and
        ``lambda/<feature>``, in the order of settings and seeds.
    """
    job = Job(make_data, settings, seeds, schedule or Schedule(), evaluate=evaluate)
    (frame,) = run_jobs(
        [job], path=path, advance=advance, max_models=max_models, workers=workers, backend=backend
    )
    return frame


def run_jobs(
    jobs: Sequence[Job],
    *,
    path: str | Path | None = None,
    advance: Advance | None = None,
    max_models: int = MAX_MODELS,
    workers: int | None = 1,
    backend: str = "loky",
) -> list[pd.DataFrame]:
    """Train the models of several jobs, the longest stacks first, and return a table for each job.

    A model of several jobs is trained once. An error or Ctrl-C ends all processes; finished stacks are kept.

    Args:
        jobs: The jobs.
        path: CSV file that rows are written to as they come; rows found there are not trained again.
        advance: Called with the work done, in units of the jobs' ``weight``; model-epochs by default.
        max_models: Maximum number of models in a stack; each finished stack is written.
        workers: Number of stacks trained in parallel, with one thread each; 1: in this process; ``None``: one
            per core of this machine or of the cluster. A Dask cluster always uses all its threads.
        backend: Backend of joblib: ``"loky"`` for this machine, ``"dask"`` or ``"ray"`` for a cluster.
    """
    check_at_least(1, workers=workers)
    if backend not in _BACKENDS:
        raise InputError(f"backend = {backend!r}: no such backend; {did_you_mean(backend, _BACKENDS)}")
    advance = advance or (lambda _: None)
    results = ResultsFile(path)
    results.check_writable()
    requested = [job.identities() for job in jobs]
    known = results.keys()
    stacks: list[tuple[Job, dict[Model, Row]]] = []
    for job, identities in zip(jobs, requested, strict=True):
        missing = [model for model, row in identities.items() if row[KEY] not in known]
        known |= {identities[model][KEY] for model in missing}
        stacks += [(stack, identities) for stack in job.stacks(missing, max_models)]
    stacks.sort(key=lambda pair: -pair[0].work)
    advance(sum(job.work for job in jobs) - sum(stack.work for stack, _ in stacks))
    todo = [stack for stack, _ in stacks]
    if backend == "loky":
        workers = min(workers or joblib.cpu_count(), len(todo))
    is_here = workers == 1 or not todo
    training = _train_here(todo, advance) if is_here else _train_in_parallel(todo, workers, backend, advance)
    with closing(training) as trained:
        for number, metrics in trained:
            identities = stacks[number][1]
            results.add([identities[model] | row for model, row in metrics.items()])
    return [results.select([row[KEY] for row in identities.values()]) for identities in requested]


def default_num_workers(model_steps: int) -> int:
    """Return the number of workers that is worth starting for this many training steps of one model."""
    cores: int = joblib.cpu_count()
    return max(1, min(cores, model_steps // _MIN_STEPS))


def _train_here(jobs: Sequence[Job], advance: Advance) -> Generator[tuple[int, dict[Model, Row]]]:
    """Yield the number and the metrics of each job, trained in this process."""
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
    """Yield the number and the metrics of each job as it is finished; closed early, it ends the workers."""
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _cluster(backend),
        _Progress(Path(folder), jobs, advance) as progress,
        _errors_explained(),
    ):
        with joblib.parallel_config(backend, n_jobs=workers or -1, **_BACKENDS[backend]):
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
    except ImportError as error:
        raise InputError(f"--backend {backend} is not installed; run: {install_command(backend)}") from error
    if not dask:
        yield
        return
    joblib.register_parallel_backend("dask", _dask_backend())
    try:
        with dask.Client():  # it reads DASK_SCHEDULER_ADDRESS
            yield
    except dask.KilledWorker as error:
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


@contextmanager
def _errors_explained() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # An error or Ctrl-C ends the workers; joblib advises to have them do less.
            warnings.filterwarnings("ignore", message=".*have been cancelled")
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
