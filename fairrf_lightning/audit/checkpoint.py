"""What a checkpoint predicts on a split of its data, with all that an audit or a certificate needs.

The options are those of ``test``: ``evaluate_checkpoint(["--ckpt_path", "best.ckpt", "--data", "adult"])``.
Split, encoding and columns are those of the checkpoint, so that no row was trained on unless the
split ``train`` is asked for by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.checkpoint_check import restoring
from fairrf_lightning.checkpoint_file import load_checkpoint
from fairrf_lightning.cli.fit import FairRFCLI, run_lightning_cli
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.table import TableDataModule
from fairrf_lightning.errors import DivergedError, InputError, did_you_mean
from fairrf_lightning.module import FairRFModule
from fairrf_lightning.notices import vanilla_notice
from fairrf_lightning.quiet import quiet_lightning

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows of one split and what a model says of them; N rows, D input columns.

    Args:
        probabilities: Probability of the positive class, ``(N,)``, float64.
        target: Classes 0 or 1, ``(N,)``.
        inputs: Encoded inputs of the model ``(N, D)``.
        related: Columns that the penalty saw beside the inputs ``(N, R)``, or ``None``.
        related_columns: Columns of ``related``, or else of ``inputs``, for each related feature.
        feature_names: Names of the columns of ``inputs``.
        rows: Row numbers in the table as read, ``(N,)``.
        groups: Group ids of the data's sensitive attribute, -1 where the group is unknown or not
            compared, ``(N,)``; all -1 for data without one.
        group_names: Their names, by id.
        attributes: Original values of the attributes asked for, one line per row; missing where unknown.
        compared: The values of each attribute that are compared; all of them if it is not named here.
        checkpoint: Path of the checkpoint.
        split: Name of the split.
        model: The restored model, in evaluation mode.
        data: The restored data module.
    """

    probabilities: Tensor
    target: Tensor
    inputs: Tensor
    related: Tensor | None
    related_columns: dict[str, list[int]]
    feature_names: list[str]
    rows: Tensor
    groups: Tensor
    group_names: list[str]
    attributes: pd.DataFrame
    compared: dict[str, list[str]]
    checkpoint: str
    split: Split
    model: FairRFModule
    data: TabularDataModule

    @property
    def data_name(self) -> str:
        """Name of the data set."""
        return str(getattr(self.data, "name", type(self.data).__name__))

    @property
    def notices(self) -> list[str]:
        """Notices about the model, to be read before any number."""
        penalty = self.model.penalty
        notice = vanilla_notice(penalty.eta, penalty.penalised_steps, self.checkpoint)
        return [] if notice is None else [notice]

    @property
    def related_matrix(self) -> Tensor:
        """The matrix that ``related_columns`` numbers the columns of."""
        return self.inputs if self.related is None else self.related


def evaluate_checkpoint(
    args: Sequence[str], split: str = "test", attributes: Sequence[str] = ()
) -> EvaluatedRows:
    """Restore a checkpoint as ``test`` does, and predict the rows of a split.

    Args:
        args: Options of ``test``: ``--ckpt_path``, ``--data``, ``--data.path`` and so on.
        split: ``train``, ``val`` or ``test``.
        attributes: Columns of the table whose original values are wanted, S or others; by default S.
    """
    if split not in get_args(Split):
        raise InputError(f"--split {split}: no such split; {did_you_mean(split, get_args(Split))}")
    if not any(arg.startswith(("--data", "--config", "-c")) for arg in args):
        raise InputError("--data is not given: name the data of the checkpoint, such as --data compas.")
    # Lightning warns of arguments given to it while there are others on the command line.
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    with quiet_lightning():
        made = run_lightning_cli(["test", *args], _MakeCLI)
    path = str(made.config["test"]["ckpt_path"])
    model, data = made.model, made.datamodule
    with restoring(path):
        _restore(model, data, path)
    if not isinstance(model, FairRFModule) or not isinstance(data, TabularDataModule):
        raise InputError(
            f"{type(model).__name__} with {type(data).__name__}: checkpoints of our own modules and data "
            "can be read; of other models write the predictions to a file and give that (--predictions)."
        )
    return _evaluate(model, data, path, split, attributes)  # type: ignore[arg-type]


class _MakeCLI(FairRFCLI):
    """Makes model and data for ``test``, and stops there."""

    def test(self, **_: Any) -> None:
        pass


def _restore(model: Any, data: Any, path: str) -> None:
    """Restore model and data from the checkpoint as ``test`` does."""
    checkpoint = load_checkpoint(path)
    state = checkpoint.get(type(data).__qualname__)
    data.prepare_data()
    if state is None:
        data.setup()
    else:
        data.load_state_dict(state)
    if isinstance(model, FairRFModule):
        model.adapt_to(data)
    model.load_state_dict(checkpoint["state_dict"])


def _evaluate(
    model: FairRFModule, data: TabularDataModule, path: str, split: Split, attributes: Sequence[str]
) -> EvaluatedRows:
    batches = _predict(model, data, split, path)
    target = batches["target"].long()
    unknown = torch.full_like(target, -1)
    names = list(attributes) or ([] if data.sensitive is None else [data.sensitive])
    return EvaluatedRows(
        probabilities=batches["probabilities"],
        target=target,
        inputs=batches["inputs"],
        related=batches.get("related"),
        related_columns=data.related_columns,
        feature_names=data.feature_names,
        rows=batches["row"],
        groups=batches.get("groups", unknown),
        group_names=data.group_names,
        attributes=_attributes(data, names, batches),
        compared={} if data.sensitive is None else {data.sensitive: data.group_names},
        checkpoint=path,
        split=split,
        model=model,
        data=data,
    )


@torch.no_grad()
def _predict(model: FairRFModule, data: TabularDataModule, split: Split, path: str) -> dict[str, Tensor]:
    model.eval()
    parts: list[dict[str, Tensor]] = []
    for batch in data.rows_of(split):
        probabilities = model.penalty.probabilities(model(batch["inputs"])).double()
        parts.append({"probabilities": probabilities, **batch})
        if not bool(probabilities.isfinite().all()):
            raise DivergedError(
                f"{path}: the model predicts numbers that are not finite (NaN) for {split} rows, so there is "
                "nothing to measure. Train again, for example with a lower --model.lr."
            )
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _attributes(data: TabularDataModule, names: Sequence[str], batches: dict[str, Tensor]) -> pd.DataFrame:
    if names == [data.sensitive] and isinstance(data, TableDataModule) and data.path.is_dir():
        # A directory may not fit into memory: the ids are all there is of it.
        values = pd.Categorical.from_codes(batches["groups"].numpy(), categories=pd.Index(data.group_names))
        return pd.DataFrame({names[0]: values})
    if not names:
        return pd.DataFrame(index=range(len(batches["target"])))
    table = data.read_columns(names).iloc[batches["row"].numpy()].reset_index(drop=True)
    return table.astype("string").astype("category")
