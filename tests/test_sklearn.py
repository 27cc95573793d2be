"""FairRFClassifier is a scikit-learn estimator, and its penalty works."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator

from fairrf_lightning.errors import InputError
from fairrf_lightning.sklearn import FairRFClassifier

pytestmark = pytest.mark.filterwarnings("ignore:no related features", "ignore:.*collapsed onto.*")


def people(number: int = 600) -> tuple[pd.DataFrame, Any]:
    random = np.random.default_rng(0)
    age, other = random.normal(40, 10, number), random.normal(size=number)
    job = np.where(age + random.normal(0, 10, number) > 40, "senior", "junior")
    label = np.where((age - 40) / 10 + 2 * other + random.normal(size=number) > 0, "yes", "no")
    return pd.DataFrame({"age": age, "other": other, "job": job}), label


def covariance(model: Any, rows: Any, age: Any) -> float:
    return float(abs(np.cov(model.predict_proba(rows)[:, 1], (age - age.mean()) / age.std())[0, 1]))


def test_the_covariance_with_a_related_feature_falls() -> None:
    table, y = people()
    rows = table[["age", "other"]]
    vanilla = FairRFClassifier(random_state=0).fit(rows, y)
    fair = FairRFClassifier(eta=5.0, random_state=0).fit(rows, y, related=["age"])
    assert covariance(fair, rows, rows["age"]) < 0.3 * covariance(vanilla, rows, rows["age"])
    assert fair.weights_ == {"age": 1.0}
    assert fair.score(rows, y) > 0.7
    copied = pickle.loads(pickle.dumps(fair))  # noqa: S301 - our own bytes
    assert (copied.predict_proba(rows) == fair.predict_proba(rows)).all()
    again = clone(fair).fit(rows, y, related=["age"])
    assert (again.predict_proba(rows) == fair.predict_proba(rows)).all()


def test_names_survive_a_pipeline_and_a_grid() -> None:
    rows, y = people(200)
    encode = make_column_transformer((OneHotEncoder(sparse_output=False), ["job"]), remainder="passthrough")
    model = FairRFClassifier(related=["age", "job"], epochs=4, pretrain_epochs=1, random_state=0)
    pipeline = make_pipeline(encode.set_output(transform="pandas"), model)
    search = GridSearchCV(pipeline, {"fairrfclassifier__eta": [0.1, 1.0]}, cv=2).fit(rows, y)
    assert set(search.best_estimator_[-1].weights_) == {"age", "job"}
    assert len(search.best_estimator_[-1].module_.penalty.columns) == 3


def test_related_features_by_number_and_an_unknown_one() -> None:
    table, y = people(50)
    rows = table[["age", "other"]].to_numpy()
    model = FairRFClassifier(related={"both": [0, 1]}, epochs=2, pretrain_epochs=1).fit(rows, y)
    assert model.module_.penalty.columns.tolist() == [0, 1]
    with pytest.raises(InputError, match="no column 5; expected numbers 0 to 1"):
        model.fit(rows, y, related=[5])
    with pytest.raises(InputError, match="no column 'agee'; did you mean 'age'"):
        model.fit(table[["age", "other"]], y, related=["agee"])
    with pytest.warns(UserWarning, match="no related features"):
        FairRFClassifier(epochs=1).fit(rows, y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks() -> None:
    check_estimator(FairRFClassifier(epochs=30, pretrain_epochs=5, batch_size=64))
