"""Which axis a metric's chart has at W&B, and which of its values stands for the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fairrf_lightning.metrics.counts import GAPS

if TYPE_CHECKING:
    from wandb import Run

GAP_LABELS = {gap.key: f"{gap.label}, {gap.name}" for gap in GAPS.values()}
RATES = {
    "selection_rate": "Selection rate",
    "true_positive_rate": "True positive rate",
    "false_positive_rate": "False positive rate",
    "accuracy": "Accuracy",
}

# The best epoch's value. Not of a gap: the smallest is that of an untrained model, which treats all alike;
# gaps keep the last value, and that of the chosen checkpoint is in the summary as chosen/val_eo_gap.
BEST = {"val_loss": "min", "val_objective": "min", "val_acc": "max"}


def define_metrics(run: Run, names: Iterable[str]) -> None:
    """Put metrics that are logged once an epoch on the epoch's axis.

    Lightning puts all on that of the steps. Names and no patterns: where a name matches several
    patterns, W&B does not say which of them counts.
    """
    run.define_metric("epoch")
    for name in names:
        run.define_metric(name, step_metric="epoch", summary=BEST.get(name))


def evaluation_names(groups: Iterable[str]) -> Iterator[str]:
    """Yield what :class:`~fairrf_lightning.FairRFModule` logs once an epoch, and our group rates."""
    yield from ("train_loss", "train_penalty", "val_loss", "val_penalty", "val_objective")
    for name in ("acc", *GAPS):
        yield from (f"val_{name}", f"val_{name}_low", f"val_{name}_high")
    for group in groups:
        yield from (rate_name("val", rate, group) for rate in RATES)


def feature_names(features: Iterable[str]) -> Iterator[str]:
    """Yield what is logged of each related feature once an epoch."""
    for feature in features:
        yield from (f"lambda/{feature}", f"penalty/{feature}")


def rate_name(stage: str, rate: str, group: str) -> str:
    """Return the name that a group's rate is logged by; W&B reads dots and slashes as levels."""
    return f"{stage}_{rate}/{group.replace('/', '_').replace('.', '_')}"
