"""Reads the options of a command that name a checkpoint: ``--ckpt_path best.ckpt --data.path new.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from fairrf_lightning import datamodules
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import EvaluatedRows, evaluate, load_run


def evaluate_checkpoint(
    args: Sequence[str], split: str = "test", attributes: Sequence[str] = ()
) -> EvaluatedRows:
    """Load the run that the options name, and predict the rows of a split.

    Args:
        args: The checkpoint or run folder, as such or by ``--ckpt_path``; ``--data.NAME VALUE`` overrides an
            option of the data; ``--trust CLASS`` allows a class of the user's. ``--data NAME`` is accepted
            and checked, but not needed.
        split: ``train``, ``val`` or ``test``.
        attributes: Columns of the table whose original values are wanted, S or others; by default S.
    """
    path, data, data_options, trust = "", "", {}, []
    for option, value in _pairs(args):
        if option in ("", "--ckpt_path"):
            path = value
        elif option == "--data":
            data = value
        elif option.startswith("--data."):
            data_options[option.removeprefix("--data.")] = yaml.safe_load(value)
        elif option == "--trust" or option.startswith("--model"):
            trust.append(value)
        elif option not in ("--config", "-c"):  # the checkpoint has all that the config says
            raise InputError(f"{option}: no such option.")
    if not path:
        raise InputError("name a checkpoint or the folder of a run.")
    run = load_run(path, data_options=data_options, trust=trust)
    _check_data(data, run.data, path)
    return evaluate(run, split, attributes)


def _pairs(args: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(args)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("-"):
            pairs.append(("", option + equals + value))
        elif not equals and not rest:
            raise InputError(f"{option}: expected a value.")
        else:
            pairs.append((option, value if equals else rest.pop(0)))
    return pairs


def _check_data(name: str, data: Any, path: str) -> None:
    """Raise if the user named other data than those of the checkpoint."""
    known = {kind.name: kind for kind in vars(datamodules).values() if hasattr(kind, "name")}
    if name in known and not isinstance(data, known[name]):
        raise InputError(
            f"--ckpt_path {path}: this checkpoint was trained on {type(data).__name__}, not on "
            f"{known[name].__name__}."
        )
