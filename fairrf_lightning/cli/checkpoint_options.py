"""The checkpoint of ``--ckpt_path``, compared with the options of the command."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from fairrf_lightning.checkpoints import (
    check_class_paths,
    check_plain,
    is_same_option,
    kept_options,
    load_checkpoint,
    malformed,
    option_kept,
    plain_parameters,
    texts,
)
from fairrf_lightning.errors import InputError
from fairrf_lightning.presets import class_path, import_class, plain_values


def check_checkpoint(
    config: Mapping[str, Any], typed: Collection[str] = (), *, resumes: bool
) -> dict[str, Any]:
    """Return the checkpoint of ``--ckpt_path``, checked against the options before Lightning loads it.

    Args:
        config: Options of the command as plain values: ``ckpt_path``, ``model``, ``data`` and others.
        typed: Options as they were typed, such as ``--model.lr``. Others may be defaults, which give way to
            the checkpoint's.
        resumes: Whether training resumes, which keeps the options of the data as well.

    Raises:
        InputError: If it is unreadable, of other data, contradicts the options given, or names a class that
            is neither of this package nor named by the user.
    """
    path = config.get("ckpt_path")
    if not path:
        return {}
    checkpoint = load_checkpoint(path, "--ckpt_path ")
    data = config.get("data") or {}
    given = data.get("class_path", "").rpartition(".")[2]
    trained_on = {
        name for name, part in checkpoint.items() if isinstance(part, Mapping) and "encoder" in part
    }
    if trained_on and given and given not in trained_on and given not in checkpoint:
        names = " or ".join(sorted(trained_on))
        raise InputError(f"--ckpt_path {path}: this checkpoint was trained on {names}, not on {given}.")
    options = checkpoint.get("hyper_parameters", {})
    for part in ("hyper_parameters", *trained_on):
        check_plain(checkpoint.get(part), part, f"--ckpt_path {path}")
    model_class = import_class(config["model"]["class_path"])
    # Not those of the data, which may come from the checkpoint itself.
    named = {text for text, place in texts(config) if not place.startswith("data.")}
    check_class_paths(options, named, f"--ckpt_path {path}", _trust_hint, plain_parameters(model_class))
    _check_model(model_class.__name__, options.get("_class_path"), path)
    _check_options("model", config["model"], options, path, "the model", typed=typed)
    if resumes:
        _check_counters(checkpoint.get("loops"), path)
    if given in checkpoint:
        trained = kept_options(checkpoint, given, path, resumes=resumes)
        keeper = "a resumed run" if resumes else "an evaluation"
        _check_options("data", data, trained, path, keeper, typed=typed)
    return checkpoint


def _trust_hint(option: str, text: str) -> str:
    return f"If you trust it, name it yourself: --{f'model.{option}'.removesuffix('._class_path')} {text}"


def _check_counters(loops: Any, path: str, place: str = "loops") -> None:
    """Raise if a counter of Lightning's loops is not a number: Lightning restores it without a check."""
    for key, value in loops.items() if isinstance(loops, Mapping) else ():
        inside = f"{place}[{key!r}]"
        if isinstance(value, Mapping):
            _check_counters(value, path, inside)
        elif ("progress" in place or key == "_batches_that_stepped") and not isinstance(value, int):
            raise malformed(f"--ckpt_path {path}", inside, value)


def _check_model(given: str, trained: Any, path: str) -> None:
    """Raise if a model was named that is not the checkpoint's, which LightningCLI takes silently."""
    if isinstance(trained, str) and given not in (trained.rpartition(".")[2], "FairRFModule"):  # the default
        raise InputError(
            f"--model {given}: the checkpoint {path} is one of {trained}.\n"
            "Leave --model or --method out, or train a new model."
        )


def _check_options(
    part: str,
    config: Mapping[str, Any],
    trained: Mapping[str, Any],
    path: str,
    keeper: str,
    *,
    typed: Collection[str] = (),
) -> None:
    """Raise if an option was given that differs from that in training, which LightningCLI keeps silently."""
    for option, value in plain_values(config.get("init_args") or {}).items():
        known = plain_values(trained.get(option))
        if isinstance(value, Mapping) and "class_path" in value:
            value = value["class_path"]  # noqa: PLW2901
            known = known.get("class_path") if isinstance(known, Mapping) else known
        same = option not in trained or is_same_option(option, value, known)
        meant = f"--{part}.{option}" in typed or not _is_default(value, config["class_path"], option)
        if not same and meant:
            raise option_kept(f"--{part}.{option} {value}", known, path, keeper)


def _is_default(value: Any, path: str, option: str) -> bool:
    """Return whether a value is the default of an option, which may be one of a base class."""
    for owner in import_class(path).__mro__:
        parameter = inspect.signature(owner).parameters.get(option)
        if parameter is not None:
            default = parameter.default
            return bool(value == (class_path(default) if inspect.isclass(default) else plain_values(default)))
    return False
