"""A progress bar in model-epochs, with the time left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, and yield what moves it on; Lightning's chatter is kept down meanwhile."""
    loud = logging.getLogger("lightning.pytorch")
    level = loud.level
    loud.setLevel(logging.WARNING)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(description, total=total)
            yield lambda epochs: progress.advance(task, epochs)
    finally:
        loud.setLevel(level)
