from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack
from fairrf_lightning.functional import Statistic
from fairrf_lightning.penalty import Given
from fairrf_lightning.sweep.objective import S_FREE, WITH_S, Objective

DATA = SyntheticDataModule(n_rows=1000, seed=0)


def stack(statistic: Statistic = "covariance", given: Given = "all") -> Stack:
    settings = [Setting(eta=eta, statistic=statistic, given=given) for eta in (0.0, 0.5, 2.0)]
    trained = Stack(lambda **_: DATA, settings, [0, 1], Schedule(epochs=2))
    trained.fit()
    return trained


DECISIONS = ("val_balanced_acc", "val_positive_share")  # what decides on eligibility, without S


@pytest.mark.parametrize("name", S_FREE)
def test_the_s_free_measure_is_the_mean_r_whatever_the_penalty_is(name: str) -> None:
    trained = stack("correlation", "positives")
    measured = Objective(name).measure(trained)
    assert set(measured) == {"val_acc", name, *DECISIONS}  # no gap leaks out
    (batch,) = trained.data.val_dataloader()
    with torch.no_grad():
        probs = trained.module(batch["inputs"]).sigmoid().double().numpy()
    rows = np.asarray(batch["target"][0]) > (0.5 if name.endswith("positives") else -1)
    columns = [column for (column,) in DATA.related_columns.values()]
    related = batch["inputs"][0][:, columns].double().numpy()[rows]
    compare: Callable[..., Any] = np.corrcoef if "correlation" in name else partial(np.cov, ddof=0)
    for s, p in np.ndindex(2, 3):
        expected = np.mean([abs(compare(column, probs[s, p][rows])[0, 1]) for column in related.T])
        assert float(measured[name][s, p]) == pytest.approx(expected, abs=1e-6)


def test_by_default_it_is_what_the_grid_breaks_ties_by() -> None:
    trained = stack()
    values = trained.evaluate(["val"])
    assert not any(name.startswith("test_") for name in values)
    penalties = torch.stack([values[f"val_penalty/{name}"] for name in DATA.related])
    torch.testing.assert_close(Objective().measure(trained)["val_covariance"], penalties.mean(0))


def test_a_gap_is_measured_by_consent() -> None:
    objective = Objective.parse("with_s:val_dp_gap")
    assert objective.uses_sensitive
    assert set(objective.measure(stack())) == {"val_acc", "val_dp_gap", *DECISIONS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "val_dp_gap",
            "looks at S on the validation rows; if you may, say so by --objective with_s:val_dp_gap",
        ),
        ("with_s:val_covariance", "does not look at S; write --objective val_covariance"),
        ("val_covarance", "did you mean 'val_covariance'"),
        ("with_s:dp_gap", "did you mean 'with_s:val_dp_gap'"),
    ],
)
def test_other_objectives_are_explained(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Objective.parse(text)
    assert message in str(error.value)


def test_data_that_do_not_fit_are_refused() -> None:
    exposed = SyntheticDataModule(n_rows=100, expose_sensitive=True)
    with pytest.raises(InputError, match="expose_sensitive shows S"):
        Objective().check(exposed)
    for name in WITH_S:
        Objective(name).check(exposed)
