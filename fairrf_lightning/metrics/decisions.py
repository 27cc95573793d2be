"""Accuracy of decisions, and rules for models whose decisions carry no information."""

from __future__ import annotations

from torch import Tensor

SAME_DECISION = "the model gives everyone the same decision; gaps of 0 mean nothing"

# Below both, a model hardly distinguishes rows. A good model of rare events has a small share but not both.
_MIN_RARER_SHARE = 0.01
_MIN_BALANCED_ACC = 0.51

# How far a penalised model may be from the vanilla one before it counts as collapsed.
_MAX_BALANCED_LOSS = 0.05
_MAX_SHARE_CHANGE = 0.5
COLLAPSE_RULE = (
    f"balanced accuracy at most {100 * _MAX_BALANCED_LOSS:g} points below the vanilla model's, and a share "
    f"of positive decisions within {100 * _MAX_SHARE_CHANGE:g} % of the vanilla model's"
)


def decision_summary(tp: Tensor, fp: Tensor, tn: Tensor, fn: Tensor) -> dict[str, Tensor]:
    """Return accuracy, balanced accuracy and the share of positive decisions.

    Args:
        tp: Number of true positives, of any shape.
        fp: Number of false positives.
        tn: Number of true negatives.
        fn: Number of false negatives.

    Returns:
        ``acc``, ``balanced_acc`` (the mean of the true positive and the true negative rate; NaN if a
        class has no rows) and ``positive_share``, each of the shape of the counts.
    """
    rows = (tp + fp + tn + fn).clamp(min=1)
    return {
        "acc": (tp + tn) / rows,
        "balanced_acc": (tp / (tp + fn) + tn / (tn + fp)) / 2,
        "positive_share": (tp + fp) / rows,
    }


def is_constant(positive_share: float) -> bool:
    """Return whether every decision is the same.

    >>> is_constant(1.0), is_constant(0.3)
    (True, False)
    """
    return positive_share in (0.0, 1.0)


def no_information(positive_share: float, balanced_acc: float) -> str:
    """Return why the gaps of a model carry no information: its decisions are all the same, or almost.

    Empty for other models. Almost all the same, and no better than chance, needs a balanced accuracy that is
    not NaN: both classes have rows.

    >>> no_information(0.001, 0.9), no_information(0.0, 0.5) == SAME_DECISION
    ('', True)
    >>> print(no_information(0.001, 0.5008))
    almost every decision is the same: 99.9 % are negative, balanced accuracy is 0.501, and the gaps carry \
no information
    """
    if is_constant(positive_share):
        return SAME_DECISION
    common = max(positive_share, 1 - positive_share)
    if not (1 - common < _MIN_RARER_SHARE and balanced_acc < _MIN_BALANCED_ACC):
        return ""
    return (
        f"almost every decision is the same: {100 * common:.1f} % are "
        f"{'positive' if positive_share > 0.5 else 'negative'}, balanced accuracy is {balanced_acc:.3f}, and "
        "the gaps carry no information"
    )


def has_collapsed(
    balanced_acc: float, positive_share: float, vanilla_balanced_acc: float, vanilla_positive_share: float
) -> bool:
    """Return whether a model differs so much from the vanilla model that its gaps mean little.

    True if every decision is the same, if the balanced accuracy is more than 5 points below the vanilla
    model's, or if the share of positive decisions differs from the vanilla model's by more than half of it.

    >>> has_collapsed(0.50, 1.0, vanilla_balanced_acc=0.62, vanilla_positive_share=0.9)
    True
    >>> has_collapsed(0.76, 0.19, vanilla_balanced_acc=0.77, vanilla_positive_share=0.2)
    False
    """
    if is_constant(positive_share):
        return True
    lost = vanilla_balanced_acc - balanced_acc > _MAX_BALANCED_LOSS
    moved = abs(positive_share - vanilla_positive_share) > _MAX_SHARE_CHANGE * vanilla_positive_share
    return lost or moved
