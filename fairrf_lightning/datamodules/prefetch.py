"""Let an iterator run ahead in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.1


def prefetched(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """Yield the items of an iterator that a thread keeps ``depth`` items ahead.

    What the iterator raises is raised here. The thread ends when this generator is closed.

    >>> list(prefetched(iter("abc")))
    ['a', 'b', 'c']
    """
    queue: Queue[tuple[str, T | BaseException | None]] = Queue(depth)
    stopped = Event()

    def put(kind: str, value: T | BaseException | None = None) -> None:
        while not stopped.is_set():
            with suppress(Full):
                queue.put((kind, value), timeout=_POLL_SECONDS)
                return

    def run() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    return
            put("end")
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that iterates
            put("error", error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = queue.get()
            if kind == "end":
                return
            if isinstance(value, BaseException) and kind == "error":
                raise value
            yield value  # type: ignore[misc]  # an item
    finally:
        stopped.set()
        thread.join()
