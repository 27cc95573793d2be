"""Options that the grid and the sweep have in common."""

from __future__ import annotations

from functools import partial
from typing import Any

from jsonargparse import Namespace

from fairrf_lightning.class_paths import import_class
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.stack import MakeData
from fairrf_lightning.methods import KSMOTE


def data_maker(options: Namespace) -> MakeData:
    """Return what makes the data module of ``--data``, given a seed."""
    if not options.get("data"):
        raise InputError("no data: name a data set, for example --data adult.")
    init_args: dict[str, Any] = vars(options.data.get("init_args")) if "init_args" in options.data else {}
    init_args = {key: value for key, value in init_args.items() if key != "seed"}  # each seed is a split
    if isinstance(init_args.get("ksmote"), Namespace):
        init_args["ksmote"] = KSMOTE(**vars(init_args["ksmote"]))
    return partial(import_class(options.data.class_path), **init_args)


def read_seeds(text: str) -> list[int]:
    """Return the seeds of ``--seeds``.

    >>> read_seeds("3"), read_seeds("0,7")
    ([0, 1, 2], [0, 7])
    """
    parts = text.strip("[] ").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InputError(f"--seeds {text}: expected how many, such as 5, or the seeds, such as 0,7,42.")
    numbers = [int(part) for part in parts]
    if len(numbers) == 1 and numbers[0] < 1:
        raise InputError(f"--seeds {text}: expected 1 or more.")
    return list(range(numbers[0])) if len(numbers) == 1 else list(dict.fromkeys(numbers))
