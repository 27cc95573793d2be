"""Stacks trained by several processes with one thread each; results come to the parent only.

Two processes of one thread are about twice as quick as one of two threads: the matrices are small. One
thread everywhere also makes the figures the same, bit by bit, for any number of processes.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

import torch

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.job import Advance, Job, Row

WORKERS_HELP = "Processes, one thread each; by default one a core if it pays. They change no figure."
_LEAST_STEPS = 20_000  # of one model: 15 seconds of work, twice what the start of a process takes
_LOGGER = "lightning.pytorch"
_POLL_SECONDS = 0.2

Keep: TypeAlias = Callable[[list[Row]], None]
_Result: TypeAlias = "Future[list[Row]]"


class _StoppedError(Exception):
    """The parent wants no more."""


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile_workers(model_steps: int) -> int:
    """Return how many processes pay for so many training steps, each of one model: one a core at most."""
    return max(1, min(available_cores(), model_steps // _LEAST_STEPS))


def check_workers(workers: int | None) -> None:
    """Refuse a number of processes that cannot be."""
    if workers is not None and workers < 1:
        raise InputError(f"workers = {workers}: expected 1 or more processes.")


def train_jobs(jobs: Sequence[Job], workers: int | None, keep: Keep, advance: Advance) -> None:
    """Train the jobs, the longest first.

    An error or Ctrl-C ends all processes; what was finished by then has been kept.

    Args:
        jobs: Stacks to train.
        workers: Number of processes, at most one a job; ``None`` for one a core. With 1, all is done in
            this process.
        keep: Called in this process with the rows of each finished job.
        advance: Called in this process with the work done.
    """
    ordered = sorted(jobs, key=lambda job: -job.work)
    workers = min(workers or available_cores(), len(ordered))
    if workers > 1:
        _check_sendable(ordered)
        _train_in_processes(ordered, workers, keep, advance)
    else:
        with _one_thread():
            for job in ordered:
                keep(_train_here(job, advance))


def _train_here(job: Job, advance: Advance) -> list[Row]:
    handler = signal.getsignal(signal.SIGINT)
    try:
        return job.train(advance)
    except SystemExit as error:
        # Lightning turns Ctrl-C into an exit and makes the process deaf to the next one.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from error


def _train_in_processes(jobs: Sequence[Job], workers: int, keep: Keep, advance: Advance) -> None:
    context = get_context("spawn")  # a fork would inherit threads and locks of torch
    stop, progress = context.Event(), context.SimpleQueue()
    state = (stop, progress, logging.getLogger(_LOGGER).level, list(warnings.filters))
    with ProcessPoolExecutor(workers, context, _start_worker, state) as pool:
        with _deaf_to_ctrl_c():  # the processes inherit it: the parent alone decides
            waiting = {pool.submit(_train_in_worker, job) for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                _pass_on(progress, advance)
                collect(done, waiting, keep)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            _keep_good(waiting, keep)
            raise


def _pass_on(progress: SimpleQueue[int], advance: Advance) -> None:
    while not progress.empty():
        advance(progress.get())


def collect(done: set[_Result], waiting: set[_Result], keep: Keep) -> None:
    """Keep the rows of those that went well, then raise the error of one that did not."""
    _keep_good(done, keep)
    waiting -= done
    for error in filter(None, (future.exception() for future in done)):
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a worker process was killed, perhaps for want of memory: run again with fewer workers; "
                "finished models are kept."
            ) from error
        raise error


def _keep_good(futures: set[_Result], keep: Keep) -> None:
    for future in futures:
        if future.done() and not future.cancelled() and future.exception() is None:
            keep(future.result())


_worker: tuple[Event, SimpleQueue[int]]


def _start_worker(stop: Event, progress: SimpleQueue[int], level: int, filters: list[Any]) -> None:
    global _worker  # noqa: PLW0603 - the only way to hand over to the tasks of a pool
    _worker = stop, progress
    torch.set_num_threads(1)
    logging.getLogger(_LOGGER).setLevel(level)
    warnings.resetwarnings()
    warnings.filters.extend(filters)  # type: ignore[attr-defined]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_in_worker(job: Job) -> list[Row]:
    stop, progress = _worker

    def check() -> None:
        if stop.is_set():
            raise _StoppedError

    return job.train(progress.put, check)


def _check_sendable(jobs: Sequence[Job]) -> None:
    try:
        pickle.dumps(jobs)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the data cannot be sent to another process ({error}): make them by a class or function "
            "of a module, or take workers=1."
        ) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
