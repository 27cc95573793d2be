"""The commands that a report prints: each is complete, so that it runs as printed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairrf_lightning.class_paths import import_class
from fairrf_lightning.load import RunFolder
from fairrf_lightning.presets import class_presets
from fairrf_lightning.printed_command import shell_command

_OURS = "fairrf_lightning."


def report_commands(run: RunFolder) -> str:
    """Return the command that reports a run."""
    return shell_command("report", run.path)


def certificate_commands(run: RunFolder) -> str:
    """Return the commands that lead to a report with a certificate; nothing without a checkpoint or data."""
    checkpoint = run.best_checkpoint
    if checkpoint is None or not _can_run(run):
        return ""
    # The config first: it holds the checkpoint that fit resumed from, or null.
    model = ("certify", "--config", run.path / "config.yaml", "--ckpt_path", checkpoint)
    proxies = run.path / "proxies.yaml"
    output = ("--output", run.path / "certificate.json")
    return "\n".join(
        [
            shell_command(*model, "--template", proxies),
            shell_command(*model, "--proxies", proxies, *output),
            report_commands(run),
        ]
    )


def comparison_commands(run: RunFolder) -> str:
    """Return the commands that train the counterpart of a run, with or without the penalty, and compare."""
    options = (run.config.get("model") or {}).get("init_args") or {}
    if not _can_run(run) or "eta" not in options:
        return ""
    # Without a number the data set's own eta is taken.
    eta, name = ("null", "penalised") if options["eta"] == 0 else ("0", "vanilla")
    return "\n".join(
        [
            shell_command(*_fit_again(run, name), f"--model.eta={eta}"),
            shell_command("report", run.path, "--against", _folder(run, name)),
        ]
    )


def logging_commands(run: RunFolder) -> str:
    """Return the commands that train a run again with the CSV logger and report it."""
    if not _can_run(run):
        return ""
    return "\n".join(
        [shell_command(*_fit_again(run, "logged")), shell_command("report", _folder(run, "logged"))]
    )


def grid_commands(run: RunFolder) -> str:
    """Return the commands that train a grid on the run's data and draw it around the run."""
    if not _can_run(run) or not str(_class_path(run, "data")).startswith(_OURS):
        return ""
    folder = run.path / "grid"
    return "\n".join(
        [
            shell_command("grid", *data_options(run.config["data"]), "--out", folder),
            shell_command("report", run.path, "--grid", folder),
        ]
    )


def data_options(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that name a data module of ours, without those that have their default.

    >>> list(data_options({"class_path": "fairrf_lightning.datamodules.AdultDataModule", "init_args": {}}))
    ['--data=adult']
    """
    class_path = str(data["class_path"])
    names = {path: name for name, path in class_presets().items()}
    yield f"--data={names.get(class_path, class_path)}"
    defaults = _defaults(class_path)
    for name, value in (data.get("init_args") or {}).items():
        default = defaults.get(name)
        if value is not None and value != (list(default) if isinstance(default, tuple) else default):
            yield f"--data.{name}={value if isinstance(value, str) else json.dumps(value)}"


def _defaults(class_path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cls in reversed(import_class(class_path).__mro__[:-1]):
        found |= {key: one.default for key, one in inspect.signature(cls).parameters.items()}
    return found


def _fit_again(run: RunFolder, name: str) -> Iterator[str | Path]:
    """Yield the arguments that train a run again from the start, into a folder in its own."""
    yield from ("fit", "--config", run.path / "config.yaml", "--trainer.logger=csv")
    yield from (f"--trainer.logger.save_dir={run.path}", f"--trainer.logger.name={name}")
    yield "--trainer.logger.version=0"
    if run.config.get("ckpt_path"):  # a run that was resumed
        yield "--ckpt_path=null"
    if (run.config.get("checkpoint") or {}).get("dirpath"):
        yield "--checkpoint.dirpath=null"


def _folder(run: RunFolder, name: str) -> Path:
    return run.path / name / "version_0"


def _can_run(run: RunFolder) -> bool:
    """Return whether the model is of this package and a table of the user's is where it was."""
    path = ((run.config.get("data") or {}).get("init_args") or {}).get("path")
    is_there = path is None or Path(path).exists()
    return is_there and str(_class_path(run, "model")).startswith(_OURS)


def _class_path(run: RunFolder, key: str) -> Any:
    return (run.config.get(key) or {}).get("class_path")
