"""The options of a command of our own."""

from __future__ import annotations

import argparse
from typing import NoReturn

from fairrf_lightning.errors import InputError


class OptionParser(argparse.ArgumentParser):
    """Raises our own error in place of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")
