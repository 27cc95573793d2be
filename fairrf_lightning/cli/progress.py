"""Progress bar in model-epochs, with the remaining time, and the end by Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fairrf_lightning.messages import quiet_lightning


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """End the command on Ctrl-C with a line about the finished models, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"finished models are in {path}" if path.is_file() else "no model was finished"
        text = f"Interrupted: {kept}. Run the same command to resume."
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(130) from None


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, and yield the function that advances it; Lightning logs warnings only."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with quiet_lightning(), Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda epochs: progress.advance(task, epochs)
