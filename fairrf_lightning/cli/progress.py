"""A progress bar in model-epochs, with the time left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Let Ctrl-C end the command with a line that says what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"finished models are in {path}" if path.is_file() else "no model was finished"
        text = f"Interrupted: {kept}. The same command goes on from there."
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(130) from None


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
