"""What a W&B run's config says of data and fairness, beside the hyper-parameters of the module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lightning import Trainer
from torch import Tensor

from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback
from fairrf_lightning.callbacks.run_files import describe_data
from fairrf_lightning.penalty import RelatedFeaturePenalty


def run_config(trainer: Trainer, penalties: Sequence[RelatedFeaturePenalty]) -> dict[str, Any]:
    """Return data set, columns, F_S, S in or out, and the options of penalty and callbacks.

    eta, beta and seed stand at the top, where W&B's tables and sweeps find them.
    """
    data = describe_data(trainer)
    config: dict[str, Any] = {"fairness": {}} | ({"data": data} if data else {})
    fairness = config["fairness"]
    if "PL_GLOBAL_SEED" in os.environ:
        config["seed"] = int(os.environ["PL_GLOBAL_SEED"])
    if data:
        fairness["sensitive"] = data["sensitive"]
        fairness["sensitive_in_inputs"] = data["include_sensitive"]
        fairness["sensitive_in_penalty"] = data["expose_sensitive"]
    if penalties:
        first = penalties[0]
        fairness |= {"related": first.feature_names, "statistic": first.statistic, "given": first.given}
        config["eta"] = first.eta.tolist() if isinstance(first.eta, Tensor) else first.eta
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, LambdaUpdateCallback):
            fairness |= {"every_n_steps": callback.every_n_steps, "rule": callback.rule}
            config["beta"] = callback.beta
        elif isinstance(callback, PretrainCallback):
            names = ("epochs", "steps", "patience")
            fairness["pretrain"] = {name: getattr(callback, name) for name in names}
    return config
