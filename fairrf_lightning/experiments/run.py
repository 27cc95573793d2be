"""Train many models: settings times seeds, sorted into stacks, in one process or in parallel.

Each process trains with one thread: two processes of one thread are about twice as fast as one of two
threads, because the matrices are small. It also makes results identical for any number of workers.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from tempfile import mkdtemp
from typing import Any, TypeAlias, TypeVar

import joblib
import pandas as pd
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least, did_you_mean
from fairrf_lightning.experiments.results import KEY, ResultsFile, data_identity, model_identity
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stack import MakeData, Stack

# 125 models train at 30 model-epochs per second in one stack, at 28 in two: few enough to keep both cores
# busy, many enough to be fast. It must not depend on the number of workers, or results would.
_MAX_MODELS = 80
_MIN_STEPS = 20_000  # of one model: 15 seconds of work, twice what the start of a process takes
_LOGGER = "lightning.pytorch"
_POLL_SECONDS = 0.2
# Backends of joblib that other packages bring: module, function that registers the backend, and packages.
_EXTERNAL_BACKENDS = {
    "ray": ("ray.util.joblib", "register_ray", "ray"),
    "dask": ("distributed", "Client", "dask distributed"),
    "spark": ("joblibspark", "register_spark", "joblibspark"),
}
BACKENDS = ("loky", "threading", *_EXTERNAL_BACKENDS)

Advance: TypeAlias = Callable[[int], None]
Evaluate: TypeAlias = Callable[[Stack], dict[str, Tensor]]
Row: TypeAlias = dict[str, Any]
Model: TypeAlias = tuple[Setting, int]  # with its seed
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Job:
    """Settings to train with seeds on data.

    Args:
        make_data: A data module class or a partial of one; called with ``seed=...``.
        settings: The settings; those with the same :class:`StackConfig` train as one stack.
        seeds: Each seed determines a split, an order of batches and an initialisation.
        schedule: Length and learning rate of training.
        weight: Work of one epoch of one model, relative to other jobs; for example its steps.
        evaluate: Returns the metrics of a trained stack, ``(S, P)`` by name.
    """

    make_data: MakeData
    settings: Sequence[Setting]
    seeds: Sequence[int]
    schedule: Schedule = field(default_factory=Schedule)
    weight: int = 1
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

    def train(self, advance: Advance, check: Callable[[], None] = lambda: None) -> dict[Model, Row]:
        """Train the models of one stack and return their metrics.

        Args:
            advance: Called with the work done after each epoch.
            check: Called before each batch; an exception that it raises ends the training.
        """
        check()
        stack = Stack(self.make_data, self.settings, self.seeds, self.schedule)
        stack.fit([_Monitor(lambda: advance(self.epoch_work), check)])
        return dict(_metrics(stack, self.evaluate(stack)))


class _Monitor(Callback):
    def __init__(self, epoch_done: Callable[[], None], check: Callable[[], None]) -> None:
        self._epoch_done = epoch_done
        self._check = check

    def on_train_batch_start(self, *_: Any) -> None:
        self._check()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self._epoch_done()


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
    max_models: int = _MAX_MODELS,
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
    max_models: int = _MAX_MODELS,
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
        workers: Number of stacks trained in parallel, with one thread each; ``None``: one per core.
        backend: Backend of joblib: ``"loky"`` or ``"threading"``, and where installed ``"ray"``, ``"dask"``
            and ``"spark"``.
    """
    check_at_least(1, workers=workers)
    if backend not in BACKENDS:
        raise InputError(f"backend = {backend!r}: no such backend; {did_you_mean(backend, BACKENDS)}")
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
    workers = min(workers or joblib.cpu_count(), len(stacks))
    with closing(_train([stack for stack, _ in stacks], workers, backend, advance)) as trained:
        for number, metrics in trained:
            identities = stacks[number][1]
            results.add([identities[model] | row for model, row in metrics.items()])
    return [results.select([row[KEY] for row in identities.values()]) for identities in requested]


def default_num_workers(model_steps: int) -> int:
    """Return the number of workers that is worth starting for this many training steps of one model."""
    cores: int = joblib.cpu_count()
    return max(1, min(cores, model_steps // _MIN_STEPS))


def _train(
    jobs: Sequence[Job], workers: int, backend: str, advance: Advance
) -> Generator[tuple[int, dict[Model, Row]]]:
    """Yield the number and the metrics of each finished job."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if workers > 1:
            yield from _train_in_parallel(jobs, workers, backend, advance)
        else:
            for number, job in enumerate(jobs):
                yield number, _train_here(job, advance)
    finally:
        torch.set_num_threads(before)


def _train_here(job: Job, advance: Advance) -> dict[Model, Row]:
    handler = signal.getsignal(signal.SIGINT)
    try:
        return job.train(advance)
    except SystemExit as error:
        # Lightning turns Ctrl-C into an exit and makes the process ignore the next one.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from error


class _StoppedError(Exception):
    """The parent process wants no further results."""


@dataclass(frozen=True)
class _Link:
    """Connects workers to the process that started them, by a folder that exists as long as it wants results.

    Workers on another machine do not see the folder: they report nothing and train to the end.
    """

    folder: Path
    host: str = field(default_factory=gethostname)
    pid: int = field(default_factory=os.getpid)
    log_level: int = field(default_factory=lambda: logging.getLogger(_LOGGER).level)
    warning_filters: tuple[Any, ...] = field(default_factory=lambda: tuple(warnings.filters))

    def train(self, number: int, job: Job) -> tuple[int, dict[Model, Row] | InputError | None]:
        """Train a job in a worker; return its metrics, an error of its input, or ``None`` if stopped."""
        if os.getpid() != self.pid:
            logging.getLogger(_LOGGER).setLevel(self.log_level)
            warnings.resetwarnings()
            warnings.filters.extend(self.warning_filters)  # type: ignore[attr-defined]
        torch.set_num_threads(1)
        is_local, parent = gethostname() == self.host, os.getppid()

        def check() -> None:
            if is_local and (not self.folder.is_dir() or os.getppid() != parent):
                raise _StoppedError

        def advance(_: int) -> None:
            with suppress(OSError), (self.folder / str(number)).open("a") as file:
                file.write(".")

        try:
            return number, job.train(advance, check)
        except _StoppedError:
            return number, None
        except InputError as error:
            return number, error

    def cut(self) -> None:
        """End the training of all workers before their next batch."""
        # Renamed first: workers may add to the folder while its files are deleted.
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder.rename(self.folder.with_suffix(".cut")), ignore_errors=True)

    def epochs(self, number: int) -> int:
        """Return the number of epochs that a job has reported."""
        path = self.folder / str(number)
        return path.stat().st_size if path.is_file() else 0


class _Progress:
    """Passes on the work that workers report, from a thread."""

    def __init__(self, link: _Link, jobs: Sequence[Job], advance: Advance) -> None:
        self._link, self._jobs, self._advance = link, jobs, advance
        self._shown = [0] * len(jobs)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def follow(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            for number, job in enumerate(self._jobs):
                self.show(number, min(self._link.epochs(number), job.schedule.epochs))

    def show(self, number: int, epochs: int) -> None:
        with self._lock:
            if (new := epochs - self._shown[number]) > 0:  # once the folder is gone, 0 epochs are read
                self._shown[number] = epochs
                self._advance(new * self._jobs[number].epoch_work)

    def __enter__(self) -> _Progress:
        threading.Thread(target=self.follow, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def _train_in_parallel(
    jobs: Sequence[Job], workers: int, backend: str, advance: Advance
) -> Iterator[tuple[int, dict[Model, Row]]]:
    _register(backend)
    link, errors = _Link(Path(mkdtemp())), []

    parallel = joblib.Parallel(
        workers, backend=backend, return_as="generator_unordered", batch_size=1, pre_dispatch="all"
    )
    try:
        with _Progress(link, jobs, advance) as progress:
            with _on_ctrl_c(signal.SIG_IGN):  # the workers inherit it: this process alone decides
                outcomes = parallel(joblib.delayed(link.train)(*pair) for pair in enumerate(jobs))
            is_local = backend not in _EXTERNAL_BACKENDS
            for number, outcome in _until_ctrl_c(outcomes, link.cut if is_local else None):
                if isinstance(outcome, InputError):
                    errors.append(outcome)
                    link.cut()
                elif outcome is not None:
                    progress.show(number, jobs[number].schedule.epochs)
                    yield number, outcome
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process was killed, perhaps because memory ran out: run again with fewer workers; "
            "finished models are kept."
        ) from error
    except pickle.PicklingError as error:
        raise InputError(
            f"the data module cannot be sent to another process ({_last_line(error.__cause__ or error)}): "
            "remove what cannot be pickled from its arguments, or use workers=1."
        ) from error
    finally:
        link.cut()
    if errors:
        raise errors[0]


def _until_ctrl_c(outcomes: Iterator[_Item], stop: Callable[[], None] | None) -> Iterator[_Item]:
    """Yield outcomes; Ctrl-C stops the workers and is raised once they have ended."""
    before = signal.getsignal(signal.SIGINT)
    if stop is None or before is not signal.default_int_handler:
        yield from outcomes
        return
    interrupted = threading.Event()

    def note(*_: object) -> None:
        interrupted.set()
        stop()
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C ends all processes at once

    with _on_ctrl_c(note):
        yield from outcomes
    if interrupted.is_set():
        raise KeyboardInterrupt


def _last_line(error: BaseException) -> str:
    return str(error).strip().strip('"').strip().splitlines()[-1]


def _register(backend: str) -> None:
    if backend not in _EXTERNAL_BACKENDS:
        return
    module, function, packages = _EXTERNAL_BACKENDS[backend]
    try:
        getattr(import_module(module), function)()
    except ImportError as error:
        raise InputError(f"--backend {backend} is not installed: pip install {packages}") from error


@contextmanager
def _on_ctrl_c(action: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    handler = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
