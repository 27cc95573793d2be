"""Loads a finished run: its model, data, split and encoding come from the checkpoint alone.

>>> run = load_run("lightning_logs/version_0")  # doctest: +SKIP
>>> evaluate(run).probabilities  # doctest: +SKIP
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch
import yaml
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import instantiate_module
from torch import Tensor

import fairrf_lightning.datamodules
import fairrf_lightning.methods  # noqa: F401 - a checkpoint may name a class of either
from fairrf_lightning.backbones import BACKBONES
from fairrf_lightning.callbacks.checkpointing import BEST, LAST, BestCheckpoint
from fairrf_lightning.checkpoints import (
    check_class_paths,
    check_kept_options,
    check_plain,
    load_checkpoint,
    plain_parameters,
    restoring,
)
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import DivergedError, InputError, did_you_mean
from fairrf_lightning.files import is_address
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.notices import vanilla_notice
from fairrf_lightning.presets import accepted_options, class_path, import_class, preset, preset_names

Split = Literal["train", "val", "test"]
_OTHER_MODELS = (
    "Checkpoints of FairRFModule with a data module of this package can be loaded. For other models, write "
    "the predictions to a file and audit that file."
)


class RunFolder:
    """The files that ``fit`` writes for a run; each may be missing except ``config.yaml``.

    Raises:
        InputError: If it is not the folder of a run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.named_checkpoint = self.path if self.path.is_file() else None
        if self.named_checkpoint is not None:  # to be taken as the best one
            self.path = self.path.absolute().parent.parent
        if not self.path.is_dir():
            raise InputError(f"{path}: there is no such folder; name that of a run or of a grid.")
        if not (self.path / "config.yaml").is_file():
            found = "no config.yaml in it, so it is not the folder of a run"
            if self.named_checkpoint is not None:
                found = "neither a checkpoint of a run nor a folder"
            raise InputError(f"{path}: {found}. fit writes one, such as lightning_logs/version_0.")
        self.config: dict[str, Any] = _read(self.path / "config.yaml", yaml.safe_load)
        self.record: dict[str, Any] = {}
        if (self.path / "run.json").is_file():
            self.record = _read(self.path / "run.json", json.loads)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The metrics that CSVLogger wrote; empty with another logger."""
        file = self.path / "metrics.csv"
        return pd.read_csv(file) if file.is_file() and file.stat().st_size else pd.DataFrame()

    @property
    def name(self) -> str:
        """Name of the folder, and of the checkpoint if one was named."""
        file = self.named_checkpoint
        return self.path.name if file is None else f"{self.path.name}, {file.name}"

    @cached_property
    def best_checkpoint(self) -> Path | None:
        """The best checkpoint, or else the last one, or ``None``.

        A resumed run writes to the folder of the run that it resumes.
        """
        if self.named_checkpoint is not None:
            return self.named_checkpoint
        named = (self.config.get("checkpoint") or {}).get("dirpath")
        folder = Path(named) if named and Path(named).is_dir() else self.path / "checkpoints"
        best, last = folder / BEST, folder / LAST
        if best.is_file():
            return best
        if last.is_file():
            chosen = folder / Path(_chosen_path(last)).name
            return chosen if chosen.is_file() else last
        return max(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime, default=None)

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        """The content of the best checkpoint; empty without one."""
        return {} if self.best_checkpoint is None else load_checkpoint(self.best_checkpoint)

    @property
    def data_name(self) -> str:
        """Short name of the data set, such as ``adult``."""
        class_path = str((self.config.get("data") or {}).get("class_path", ""))
        return class_path.rpartition(".")[2].removesuffix("DataModule").lower() or "unknown"


@dataclass(frozen=True)
class Run:
    """A finished run, with its model and data restored.

    Args:
        path: The checkpoint.
        checkpoint: Its content: tensors and plain values.
        module: The model, in evaluation mode. To resume training, use ``fit --ckpt_path``.
        data: The data, with the split and encoding of the run.
        config: The run's ``config.yaml``; empty if the checkpoint is not in the folder of a run.
        record: The run's ``run.json``; empty likewise.
    """

    path: Path
    checkpoint: Mapping[str, Any] = field(repr=False)
    module: FairRFModule = field(repr=False)
    data: TabularDataModule
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def notices(self) -> list[str]:
        """Notices about the model, to be read before any number."""
        penalty = self.module.penalty
        notice = vanilla_notice(penalty.eta, penalty.penalised_steps, str(self.path))
        return [] if notice is None else [notice]

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the probability of the positive class, or of each class, of encoded rows, in float64."""
        probabilities: Tensor = self.module.penalty.probabilities(self.module(inputs))
        return probabilities.double()


def load_run(
    path: str | Path,
    *,
    data_options: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
    module: FairRFModule | None = None,
) -> Run:
    """Restore model and data of a run from its checkpoint.

    Args:
        path: A checkpoint, or the folder of a run, of which the best checkpoint is loaded.
        data_options: Options of the data that differ from those in training, for example ``path`` if the
            table was moved or ``data_dir``. Split and encoding are always those of the checkpoint.
        trust: Import paths of your own classes that the checkpoint may use, such as ``my_code.MyBackbone``,
            and addresses that it may download data from. Classes of this package and addresses of presets
            need not be named.
        module: A model to restore the weights into; needed only if its backbone was passed in Python as an
            object or a function, which a checkpoint does not keep.

    Raises:
        InputError: If there is no usable checkpoint, it names a class or an address that is not trusted, or
            its data cannot be found.
    """
    path, folder = find_checkpoint(Path(path))
    checkpoint = load_checkpoint(path)
    for part in ("class_paths", "hyper_parameters", "datamodule_hyper_parameters"):
        check_plain(checkpoint.get(part), part, str(path))
    model_class, data_class = _classes(checkpoint, path, trust)
    trained = _options(checkpoint, "datamodule_hyper_parameters")
    check_data_options(trained, data_class, trust, str(path), _trust_hint)
    check_kept_options(data_options or {}, checkpoint, data_class, str(path))
    data: TabularDataModule = _make(data_class, _data_options(trained, data_options or {}, path), path)
    if module is None:
        options = _options(checkpoint, "hyper_parameters")
        check_class_paths(options, trust, str(path), _trust_hint, plain_parameters(model_class))
        module = _make(model_class, _with_backbone(options, checkpoint["class_paths"], path), path)
    with restoring(str(path), option=""):
        _restore(module, data, checkpoint)
    config, record = ({}, {}) if folder is None else (folder.config, folder.record)
    return Run(path, checkpoint, module.eval(), data, config, record)


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows of a split with the predictions of a model; N rows, D input columns.

    Args:
        run: The run that the model and the data belong to.
        split: Name of the split.
        probabilities: Probability of the positive class, ``(N,)``, or of each class, ``(N, classes)``;
            float64.
        target: Classes from 0, ``(N,)``.
        inputs: Encoded inputs of the model ``(N, D)``.
        related: Columns that only the penalty sees ``(N, R)``; ``None`` if the related columns are inputs.
        rows: Row numbers in the table as read, ``(N,)``.
        groups: Group ids of the sensitive attribute, -1 where the group is unknown or not compared,
            ``(N,)``; all -1 for data without one.
        attributes: Original values of the requested attributes; missing where unknown.
    """

    run: Run
    split: Split
    probabilities: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    inputs: Tensor = field(repr=False)
    related: Tensor | None = field(repr=False)
    rows: Tensor = field(repr=False)
    groups: Tensor = field(repr=False)
    attributes: pd.DataFrame = field(repr=False)

    @property
    def data(self) -> TabularDataModule:
        """The data module."""
        return self.run.data

    @property
    def data_name(self) -> str:
        """Name of the data set."""
        return str(getattr(self.data, "name", type(self.data).__name__))

    @property
    def checkpoint(self) -> str:
        """Path of the checkpoint."""
        return str(self.run.path)

    @property
    def compared(self) -> dict[str, list[str]]:
        """Values of each attribute that are compared; all values for an attribute not listed."""
        return {} if self.data.sensitive is None else {self.data.sensitive: self.data.group_names}

    @property
    def related_matrix(self) -> Tensor:
        """The matrix that ``data.related_columns`` counts in: ``related``, or else ``inputs``."""
        return self.inputs if self.related is None else self.related


def check_two_classes(run: Run) -> None:
    """Raise :class:`InputError` if the model has more than two classes."""
    if (classes := run.module.num_classes) > 2:
        raise InputError(
            f"{run.path}: the model has {classes} classes, expected two. For more than two classes there are "
            "audit and report, without --survey, --certificate and --grid."
        )


def evaluate(
    run: Run, split: str = "test", attributes: Sequence[str] = (), *, several_classes: bool = False
) -> EvaluatedRows:
    """Predict the rows of a split.

    Args:
        run: The run.
        split: ``train``, ``val`` or ``test``.
        attributes: Columns of the table to return with their original values; by default the sensitive
            attribute of the data.
        several_classes: Allow a model of more than two classes.

    Raises:
        InputError: If the split or a column does not exist, or the model has too many classes.
        DivergedError: If a prediction is not finite.
    """
    if split not in get_args(Split):
        raise InputError(f"--split {split}: no such split; {did_you_mean(split, get_args(Split))}")
    if not several_classes:
        check_two_classes(run)
    parts: list[dict[str, Tensor]] = []
    for batch in run.data.rows_of(split):
        probabilities = run.predict(batch["inputs"])
        parts.append({"probabilities": probabilities, **batch})
        if not bool(probabilities.isfinite().all()):
            raise DivergedError(
                f"{run.path}: the model predicts numbers that are not finite (NaN) for {split} rows, so "
                "there is nothing to measure. Train again, for example with a lower --model.lr."
            )
    found = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    target = found["target"].long()
    sensitive = run.data.sensitive
    return EvaluatedRows(
        run=run,
        split=split,  # type: ignore[arg-type]
        probabilities=found["probabilities"],
        target=target,
        inputs=found["inputs"],
        related=found.get("related"),
        rows=found["row"],
        groups=found.get("groups", torch.full_like(target, -1)),
        attributes=_attributes(run.data, list(attributes) or ([sensitive] if sensitive else []), found),
    )


def find_checkpoint(path: Path) -> tuple[Path, RunFolder | None]:
    """Return the checkpoint, and the folder of its run if there is one."""
    if not path.is_dir():
        folder = path.absolute().parent.parent
        return path, RunFolder(folder) if (folder / "config.yaml").is_file() else None
    run = RunFolder(path)
    if run.best_checkpoint is None:
        raise InputError(f"{path}: the run has kept no checkpoint.")
    return run.best_checkpoint, run


def _classes(
    checkpoint: Mapping[str, Any], path: Path, trust: Collection[str]
) -> tuple[type[Any], type[Any]]:
    """Return the classes of model and data."""
    paths = checkpoint.get("class_paths", {})
    if not {"model", "data"} <= set(paths) or not all(isinstance(name, str) for name in paths.values()):
        raise InputError(f"{path}: it does not name a model and a data module. {_OTHER_MODELS}")
    named = {part: {"class_path": name} for part, name in paths.items()}
    check_class_paths(named, trust, str(path), _trust_hint)
    found = import_class(paths["model"]), import_class(paths["data"])
    if not issubclass(found[0], FairRFModule) or not issubclass(found[1], TabularDataModule):
        raise InputError(f"{path}: {paths['model']} with {paths['data']}. {_OTHER_MODELS}")
    return found


def _options(checkpoint: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name: value for name, value in checkpoint.get(part, {}).items() if name != "_instantiator"}


def _trust_hint(_: str, text: str) -> str:
    return f"If you trust it, name it yourself: --trust {text}"


def check_data_options(
    options: Mapping[str, Any],
    data_class: type[Any],
    trust: Collection[str],
    path: str,
    hint: Callable[[str, str], str],
) -> None:
    """Raise if a checkpoint's options of the data name a class or an address that is not trusted."""
    check_class_paths(options, trust, path, hint, plain_parameters(data_class))
    url = options.get("url")
    presets = (preset("datamodules", name) for name in preset_names("datamodules"))
    if url is None or url in trust or any(url == (one.get("init_args") or {}).get("url") for one in presets):
        return
    raise InputError(
        f"{path}: its data come from {url}, which is not the address of a preset.\n{hint('url', str(url))}"
    )


def _with_backbone(options: Mapping[str, Any], class_paths: Mapping[str, str], path: Path) -> dict[str, Any]:
    backbone = options.get("backbone", class_paths.get("backbone"))
    if backbone is None:
        raise InputError(
            f"{path}: its backbone was passed as an object or a function, which a checkpoint does not keep. "
            "Load it in Python: load_run(path, module=FairRFModule(backbone=...))."
        )
    if isinstance(backbone, str) and backbone in BACKBONES:
        backbone = class_path(BACKBONES[backbone])
    return {**options, "backbone": backbone}


def _data_options(trained: Mapping[str, Any], given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    if unknown := next((name for name in given if name not in trained), None):
        raise InputError(f"--data.{unknown}: no such option; {did_you_mean(unknown, sorted(trained))}")
    options = {**trained, **given}
    table = options.get("path")
    if table is not None and "path" not in given and not (is_address(table) or Path(table).exists()):
        raise InputError(
            f"{path}: its table {table} is not there any more. Name its new place: --data.path FILE "
            "(in Python, load_run(..., data_options={'path': ...}))."
        )
    return options


def _make(class_type: type[Any], options: Mapping[str, Any], path: Path) -> Any:
    """Return the model or the data that the options describe, as LightningCLI makes it."""
    kind = LightningModule if issubclass(class_type, LightningModule) else LightningDataModule
    try:
        # Lightning also saves the arguments of base classes, which a subclass need not accept.
        accepted = {name: options[name] for name in accepted_options(class_type) if name in options}
        return instantiate_module(kind, {**accepted, "_class_path": class_path(class_type)})
    except (ArgumentError, ValueError, TypeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InputError):
            cause = cause.__cause__ or cause.__context__
        text = str(cause or error)
        if refused := re.findall(r'Parser key "(.+)":', text):  # the innermost option, and its value
            value = re.search(r"Given value: (.*)", text[text.rindex(refused[-1]) :])
            text = refused[-1] + (f" = {value[1]}" if value else "")
        reason = text.strip().partition("\n")[0]
        what = "model" if kind is LightningModule else "data"
        raise InputError(f"{path}: its options of the {what} cannot be used ({reason}).") from error


def _restore(module: FairRFModule, data: TabularDataModule, checkpoint: Mapping[str, Any]) -> None:
    state = checkpoint.get(type(data).__qualname__)
    data.prepare_data()
    if state is None:
        raise InputError("the checkpoint has no state of its data. Restore it from a copy, or train again.")
    data.load_state_dict(state)
    module.adapt_to(data)
    module.load_state_dict(checkpoint["state_dict"])


def _attributes(data: TabularDataModule, names: Sequence[str], found: Mapping[str, Tensor]) -> pd.DataFrame:
    if names == [data.sensitive] and data.is_streamed:
        # A directory may not fit into memory, so the ids are used instead of the column.
        values = pd.Categorical.from_codes(found["groups"].numpy(), categories=pd.Index(data.group_names))
        return pd.DataFrame({names[0]: values})
    if not names:
        return pd.DataFrame(index=range(len(found["target"])))
    table = data.read_columns(names).iloc[found["row"].numpy()].reset_index(drop=True)
    return table.astype("string").astype("category")


def _chosen_path(last: Path) -> str:
    states = load_checkpoint(last).get("callbacks", {})
    # The built-in callback first, as in `fit`: a callback of the user's may have chosen by S.
    for key in sorted(states, key=lambda key: not key.startswith(BestCheckpoint.__qualname__)):
        if isinstance(states[key], dict) and states[key].get("best_model_path"):
            return str(states[key]["best_model_path"])
    return last.name


def _read(path: Path, load: Any) -> dict[str, Any]:
    try:
        found = load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected named values, found {type(found).__name__}.")
    return found
