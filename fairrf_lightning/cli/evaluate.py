"""``test``, ``validate`` and ``predict``: the data and the model come from the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairrf_lightning.checkpoints import check_class_paths, check_plain, load_checkpoint
from fairrf_lightning.cli.fit import TABLES, given_options, needs_run, run_fit
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import check_data_options, find_checkpoint
from fairrf_lightning.presets import accepted_options, import_class

# Options of `fit` without an effect on an evaluation; in a config file, such as that of a run, they may stay.
_OF_TRAINING = {"--pretrain", "--lambda_update", "--checkpoint", "--optimizer", "--lr_scheduler"}


def run_evaluation(args: list[str]) -> None:
    """Run ``test``, ``validate`` or ``predict`` with the data and the model that the checkpoint names.

    Args:
        args: The name of the command and its arguments. The checkpoint or the folder of its run may be given
            without ``--ckpt_path``.
    """
    run_fit(_with_checkpoint(args))


def _with_checkpoint(args: list[str]) -> list[str]:
    command, *rest = args
    if rest and not rest[0].startswith("-"):
        rest = ["--ckpt_path", *rest]
    given = given_options(rest)
    without_effect = _OF_TRAINING if command == "predict" else {*_OF_TRAINING, "--predictions"}
    for option in given:
        if option.partition(".")[0] in without_effect and "help" not in option:
            raise InputError(f"{option}: it has no effect on {command}; leave it out.")
    path = given.get("--ckpt_path")
    if path is None and not any(
        key in ("--config", "-c", "--print_config") or "help" in key for key in given
    ):
        raise needs_run(command)
    if path is None or {"--config", "--print_config"} & set(given) or path.endswith(TABLES):
        return [command, *rest]
    if Path(path).is_dir():
        path = str(find_checkpoint(Path(path))[0])
        rest += ["--ckpt_path", path]
    return [command, *_data_and_model(load_checkpoint(path), f"--ckpt_path {path}", given), *rest]


def _data_and_model(checkpoint: dict[str, Any], name: str, given: Mapping[str, str]) -> Iterator[str]:
    """Yield ``--data`` and ``--model`` as the checkpoint has them, unless they are given."""
    classes = {part: {"class_path": path} for part, path in checkpoint.get("class_paths", {}).items()}
    options = checkpoint.get("datamodule_hyper_parameters", {})
    check_plain([classes, options], "class_paths", name)
    absent = {"data", "model"} - {option.removeprefix("--").replace("method", "model") for option in given}
    for part in sorted(absent & set(classes)):
        check_class_paths({part: classes[part]}, (), name, hint=_trust_hint)
        init_args = {}
        if part == "data":
            data_class = import_class(classes[part]["class_path"])
            check_data_options(options, data_class, given.values(), name, _trust_data_hint)
            accepted = accepted_options(data_class)
            init_args = {option: options[option] for option in accepted if options.get(option) is not None}
        yield f"--{part}={json.dumps(classes[part] | {'init_args': init_args})}"


def _trust_hint(option: str, class_path: str) -> str:
    return f"If you trust it, name it yourself: --{option} {class_path}"


def _trust_data_hint(option: str, text: str) -> str:
    return _trust_hint("data" if option == "_class_path" else f"data.{option}", text)
