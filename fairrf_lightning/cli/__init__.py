"""The command line: one table of commands, each a typed function that is imported when it is called."""

from fairrf_lightning.cli.main import main

__all__ = ["main"]
