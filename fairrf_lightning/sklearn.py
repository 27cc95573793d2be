"""FairRF as a scikit-learn estimator, on the same module and callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.module import FairRFModule


class FairRFClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A classifier of two classes whose predictions do not covary with the related features.

    Columns are standardised with the training rows. Encode categories before, for example by
    ``OneHotEncoder`` in a ``Pipeline`` with ``set_output(transform="pandas")``: the name ``"job"`` then means
    all columns ``job_...``.

    Args:
        related: Related features: column names or numbers, or a dict of names with lists of these; ``fit``
            can override it. Without any, the model is vanilla, with a warning.
        eta: Weight of the penalty.
        beta: Weight of ``|lambda|^2``.
        hidden: Sizes of the hidden layers; ``()`` is logistic regression.
        epochs: Number of epochs.
        pretrain_epochs: Number of epochs without the penalty, of ``epochs``.
        batch_size: Rows per step.
        lr: Learning rate of Adam.
        random_state: Seed of the initial weights and of the order of the rows.

    Attributes:
        classes_: The two classes; the second is the positive one.
        module_: The trained FairRFModule.
        weights_: lambda by related feature; empty without related features.
    """

    def __init__(
        self,
        related: Any = None,
        *,
        eta: float = 0.6,
        beta: float = 0.5,
        hidden: Sequence[int] = (64, 32),
        epochs: int = 40,
        pretrain_epochs: int = 5,
        batch_size: int = 256,
        lr: float = 0.01,
        random_state: Any = None,
    ) -> None:
        self.related = related
        self.eta = eta
        self.beta = beta
        self.hidden = hidden
        self.epochs = epochs
        self.pretrain_epochs = pretrain_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.random_state = random_state

    def fit(self, X: Any, y: Any, related: Any = None) -> FairRFClassifier:  # noqa: N803 - scikit-learn's name
        """Train on rows ``(N, D)`` and labels ``(N,)``.

        Args:
            X: A DataFrame or an array of numbers.
            y: Labels of two classes.
            related: Related features, as in the constructor, for this fit.

        Raises:
            InputError: If a related column does not exist.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) > 2:
            kind = type_of_target(labels, input_name="y")
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if len(self.classes_) < 2:
            raise ValueError("FairRFClassifier can't train when only one class is present.")
        self._mean, scale = rows.mean(0), rows.std(0)
        self._scale = np.where(scale > 0, scale, 1.0)
        columns = self._columns(self.related if related is None else related)
        if not columns:
            warnings.warn("no related features: this is a vanilla model. Give related=[...].", stacklevel=2)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._train(self._standardised(rows), torch.from_numpy(codes).double(), columns, seed)
        weights = self.module_.penalty.weights.tolist() if columns else []
        self.weights_ = dict(zip(columns, weights, strict=True))
        return self

    def _train(
        self, rows: torch.Tensor, target: torch.Tensor, columns: dict[str, list[int]], seed: int
    ) -> None:
        batch = min(self.batch_size, len(rows))
        data = TensorBatches({"inputs": rows, "target": target}, batch, shuffle=True, seed=seed)
        callbacks = [
            PretrainCallback(epochs=min(self.pretrain_epochs, self.epochs - 1)),
            LambdaUpdateCallback(self.beta, max(1, len(data))),
        ]
        with torch.random.fork_rng(devices=[]), quiet_lightning(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            torch.manual_seed(seed)
            backbone = MLP(rows.shape[1], tuple(self.hidden), dropout=0.0)
            eta = self.eta if columns else 0.0
            module = FairRFModule(
                rows.shape[1], columns or {"any": [0]}, backbone=backbone, eta=eta, lr=self.lr
            )
            trainer = Trainer(
                accelerator="cpu",
                precision="64-true",
                max_epochs=self.epochs,
                callbacks=callbacks,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                limit_val_batches=0,
            )
            trainer.fit(module, data)
        module.trainer = None  # so that the estimator pickles without its data
        self.module_ = module.eval()

    def _standardised(self, rows: Any) -> torch.Tensor:
        return torch.from_numpy((rows - self._mean) / self._scale)

    def _columns(self, related: Any) -> dict[str, list[int]]:
        if related is None:
            return {}
        features = related if isinstance(related, Mapping) else {str(part): [part] for part in related}
        return {
            str(name): [number for part in parts for number in self._numbers(part)]
            for name, parts in features.items()
        }

    def _numbers(self, part: Any) -> list[int]:
        if isinstance(part, int | np.integer) and 0 <= part < self.n_features_in_:
            return [int(part)]
        names = [str(name) for name in getattr(self, "feature_names_in_", [])]
        plain = [name.rpartition("__")[2] for name in names]  # a ColumnTransformer prefixes its steps
        for same in (str(part).__eq__, lambda name: name.startswith(f"{part}_")):
            if found := [i for i, pair in enumerate(zip(names, plain, strict=True)) if any(map(same, pair))]:
                return found
        known = (
            did_you_mean(str(part), names) if names else f"expected numbers 0 to {self.n_features_in_ - 1}"
        )
        raise InputError(f"related: no column {part!r}; {known}.")

    @torch.no_grad()
    def predict_proba(self, X: Any) -> Any:  # noqa: N803 - scikit-learn's name
        """Return the probability of each class, ``(N, 2)``."""
        check_is_fitted(self)
        rows = self._standardised(validate_data(self, X, dtype=np.float64, reset=False))
        positive = self.module_(rows).sigmoid().numpy()
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> Any:  # noqa: N803 - scikit-learn's name
        """Return the class of each row."""
        check_is_fitted(self)
        return self.classes_[(self.predict_proba(X)[:, 1] >= 0.5).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
