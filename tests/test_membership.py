from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fairrf_lightning import InputError
from fairrf_lightning.correction import Correction, Goal, fit_if_detected
from fairrf_lightning.datamodules import SyntheticDataModule, TableDataModule
from fairrf_lightning.datamodules.sensitive import draw_form
from fairrf_lightning.estimate import ScoredRows
from fairrf_lightning.functional import fit_logistic, ridge_membership
from fairrf_lightning.membership import FOLDS, Membership, folds_of
from fairrf_lightning.survey import Survey
from tests.surveys import survey_of


def answers(num_people: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, true groups and the true weights with the intercept."""
    random = np.random.default_rng(seed)
    weights = random.normal(size=columns + 1)
    inputs = random.normal(size=(num_people, columns))
    member = random.random(num_people) < expit(inputs @ weights[:-1] + weights[-1])
    return torch.from_numpy(inputs), torch.from_numpy(member).long(), torch.from_numpy(weights)


@pytest.fixture(scope="module")
def data() -> SyntheticDataModule:
    made = SyntheticDataModule(n_rows=8000, seed=0)
    made.setup()
    return made


@pytest.mark.parametrize("strength", [0.001, 0.1, 10.0])
def test_newton_finds_what_scikit_learn_finds(strength: float) -> None:
    inputs, groups, _ = answers(300, 6)
    model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-12)
    reference = model.fit(inputs.numpy(), groups.numpy())
    found = fit_logistic(inputs, groups, strength)
    assert found[:-1].numpy() == pytest.approx(reference.coef_[0], abs=1e-5)
    assert float(found[-1]) == pytest.approx(reference.intercept_[0], abs=1e-5)


def test_separable_answers_give_finite_weights() -> None:
    inputs, _, _ = answers(200, 3)
    found = fit_logistic(inputs, inputs[:, 0] > 0, 1.0)
    assert bool(found.isfinite().all())


def test_randomised_answers_give_the_weights_of_the_true_groups() -> None:
    inputs, groups, weights = answers(40_000, 3)
    random = torch.Generator().manual_seed(1)
    replaced = torch.rand(len(groups), generator=random) < 0.5
    coins = torch.randint(0, 2, groups.shape, generator=random)
    found = fit_logistic(inputs, torch.where(replaced, coins, groups), 1e3, randomized=0.5)
    naive = fit_logistic(inputs, torch.where(replaced, coins, groups), 1e3)
    assert (found - weights).abs().max() < 0.1
    assert (naive - weights).abs().max() > 0.3


def test_correlations_give_the_least_squares_predictor() -> None:
    inputs, groups, _ = answers(5000, 4)
    z = (inputs - inputs.mean(0)) / inputs.std(0, correction=0)
    share = float(groups.double().mean())
    corr = z.T @ z / len(z)
    member = (groups - share).double()
    with_s = (z * member[:, None]).mean(0) / member.square().mean().sqrt()
    reference = np.linalg.lstsq(z.numpy(), member.numpy(), rcond=None)[0]
    assert ridge_membership(share, with_s, corr).numpy() == pytest.approx(reference, abs=1e-3)


def test_directions_without_variance_are_left_out() -> None:
    twins = torch.ones(2, 2)  # one column twice
    weights = ridge_membership(0.5, torch.tensor([0.4, 0.4]), twins)
    assert weights.tolist() == pytest.approx([0.1, 0.1], abs=1e-3)


def test_membership_of_a_survey_is_close_to_that_of_the_population(data: SyntheticDataModule) -> None:
    membership = Membership.from_survey(survey_of(data, 2000), data)
    (rows,) = data.rows_of("test")
    found = membership(rows["inputs"])
    everyone = LogisticRegression(C=1e3).fit(*(part.numpy() for part in _all(data)))
    reference = torch.from_numpy(everyone.predict_proba(rows["inputs"].numpy())[:, 1])
    assert (found - reference).abs().mean() < 0.03
    assert membership.share.sum() == pytest.approx(1.0)
    assert membership.share[1] == pytest.approx(float(found.mean()), abs=0.02)


def _all(data: SyntheticDataModule) -> tuple[Tensor, Tensor]:
    parts = [batch for part in ("train", "val") for batch in data.rows_of(part)]
    return torch.cat([part["inputs"] for part in parts]), torch.cat([part["groups"] for part in parts])


def test_label_is_an_input_where_it_is_given(data: SyntheticDataModule) -> None:
    membership = Membership.from_survey(survey_of(data, 2000), data)
    (rows,) = data.rows_of("test")
    given = membership(rows["inputs"], rows["target"])
    for label in (0, 1):
        chosen = rows["target"] == label
        known = rows["groups"][chosen].double().mean()
        assert float(given[chosen].mean()) == pytest.approx(float(known), abs=0.05)
    positives = membership(rows["inputs"], torch.ones(len(rows["inputs"])))
    assert float(positives[rows["target"] == 1].mean()) == pytest.approx(
        float(membership.label_share[1]), abs=0.02
    )
    unlabelled = Membership.from_survey(replace(survey_of(data, 400), target=None), data)
    with pytest.raises(InputError, match="survey with labels"):
        unlabelled(rows["inputs"], rows["target"])


def test_cross_fitting_does_not_use_a_persons_own_answer(data: SyntheticDataModule) -> None:
    survey = survey_of(data, 200)
    folds = folds_of(survey.groups)
    assert folds.bincount().tolist() == [40] * FOLDS
    fitted = Membership.from_survey(survey, data).cross_fitted(survey)
    out = folds == 2
    strengths = np.logspace(-3, 0, 7)
    inputs = survey.inputs.double().numpy()  # scikit-learn solves in the inputs' precision
    references = [
        LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)
        .fit(inputs[~out], survey.groups[~out].numpy())
        .predict_proba(inputs[out])[:, 1]
        for strength in strengths
    ]
    differences = [float(np.abs(fitted[out].numpy() - reference).max()) for reference in references]
    assert min(differences) < 1e-4


def test_surveyed_people_among_other_rows_are_recognised(data: SyntheticDataModule) -> None:
    (rows,) = data.rows_of("val")
    asked = {key: rows[key][100:400] for key in ("inputs", "groups", "target", "row")}
    survey = Survey(asked["inputs"], asked["groups"], asked["target"], asked["row"], ("a", "b"))
    membership = Membership.from_survey(survey, data)
    for target in (None, torch.ones(len(rows["row"]))):
        found = membership.probabilities(rows["inputs"], target, rows=rows["row"], survey=survey)[:, 1]
        own = membership.cross_fitted(survey, None if target is None else target[100:400])
        everyone = membership(rows["inputs"], target)
        assert torch.equal(found[100:400], own)
        assert not torch.allclose(own, everyone[100:400], atol=1e-3)
        assert torch.equal(found[400:], everyone[400:])
    # The strength of a correction is chosen by these values.
    goal, probs = Goal.parse("dp=0.1", 0.5), rows["inputs"].mean(-1).sigmoid()
    values = membership.probabilities(rows["inputs"], rows=rows["row"], survey=survey)
    pool = ScoredRows(probs, rows["inputs"], rows["target"], rows["row"])
    fitted, _ = fit_if_detected(pool, membership, survey, goal=goal)
    fitted_on_values = Correction.fit(probs, values, target=rows["target"], goal=goal)
    assert fitted is not None
    assert fitted.outcome is not None
    assert fitted_on_values.outcome is not None
    assert fitted.outcome.gap_before == fitted_on_values.outcome.gap_before


def test_people_of_another_survey_were_not_seen(data: SyntheticDataModule) -> None:
    (rows,) = data.rows_of("train")
    first, other = (
        Survey(rows["inputs"][part], rows["groups"][part], rows["target"][part], group_names=("a", "b"))
        for part in (slice(0, 300), slice(300, 700))
    )
    membership = Membership.from_survey(first, data)
    state = membership.state_dict()
    restored = Membership.from_state(state)
    restored.load_state_dict(state)
    assert torch.equal(restored.cross_fitted(first), membership.cross_fitted(first))
    assert torch.equal(restored.cross_fitted(other), restored(other.inputs))
    # The same people with the groups in another order are the same people.
    turned = replace(first, groups=1 - first.groups, group_names=("b", "a"))
    assert torch.equal(restored.cross_fitted(turned), membership.cross_fitted(first))


def test_three_groups_are_probabilities(data: SyntheticDataModule) -> None:
    survey = survey_of(data, 600)
    thirds = torch.where(survey.inputs[:, 0] > 0.5, 2, survey.groups)
    three = replace(survey, groups=thirds, group_names=("a", "b", "c"))
    membership = Membership.from_survey(three, data)
    (rows,) = data.rows_of("test")
    found = membership(rows["inputs"])
    assert found.shape == (len(rows["inputs"]), 3)
    assert torch.allclose(found.sum(-1), torch.ones(len(found)))
    truth = torch.where(rows["inputs"][:, 0] > 0.5, 2, rows["groups"])
    assert float((found.argmax(-1) == truth).double().mean()) > 0.7


def test_correlations_of_published_figures(data: SyntheticDataModule) -> None:
    known = {name: with_s for name, (with_s, _) in data.correlations.items() if with_s}
    membership = Membership.from_correlations(0.5, known, data, "b")
    (rows,) = data.rows_of("test")
    found, member = membership(rows["inputs"]), rows["groups"].double()
    # A linear predictor with the right correlations is calibrated: S = g + noise that g does not predict.
    slope = torch.cov(torch.stack([found.double(), member]))[0]
    assert float(slope[1] / slope[0]) == pytest.approx(1.0, abs=0.1)
    assert membership.group_names == ("not b", "b")


def two_cities(folder: Path) -> TableDataModule:
    random = np.random.default_rng(0)
    city, label = random.choice(["u", "v"], 200), random.integers(0, 2, 200)
    table = pd.DataFrame({"city": city, "age": random.normal(size=200), "label": label})
    table.to_csv(folder / "cities.csv", index=False)
    made = TableDataModule(str(folder / "cities.csv"), target="label", related=["age"])
    made.setup()
    return made


def test_correlations_that_no_attribute_can_have(data: SyntheticDataModule, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no S can have them"):
        Membership.from_correlations(0.5, {"height": 0.9, "income": -0.9}, data)
    with pytest.raises(InputError, match="no S can have them: they contradict"):
        # Almost the same direction of the columns as a constant: the two columns of one dummy.
        Membership.from_correlations(0.5, {"city=u": 0.5, "city=v": 0.5}, two_cities(tmp_path))
    with pytest.raises(InputError, match="no column 'hight'"):
        Membership.from_correlations(0.5, {"hight": 0.9}, data)
    with pytest.raises(InputError, match="between 0 and 1"):
        Membership.from_correlations(1.0, {"height": 0.4}, data)
    with pytest.raises(InputError, match="one correlation or more"):
        Membership.from_correlations(0.5, {}, data)


def test_column_of_probabilities_is_read_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    member = random.random(500).round(3)
    frame = pd.DataFrame({"p_b": member, "x": random.normal(size=500), "y": random.integers(0, 2, 500)})
    frame.to_csv(tmp_path / "table.csv", index=False)
    data = TableDataModule(str(tmp_path / "table.csv"), target="y", related=["x"], seed=0)
    data.setup()
    membership = Membership.from_column("p_b", data, "b")
    for part in ("train", "test"):
        for batch in data.rows_of(part):
            assert membership(batch["inputs"]).numpy() == pytest.approx(member[batch["row"]], abs=1e-5)
    with pytest.raises(InputError, match="expected probabilities"):
        Membership.from_column("x", data)


def test_state_holds_coefficients_only(data: SyntheticDataModule, tmp_path: Path) -> None:
    membership = Membership.from_survey(survey_of(data, 400), data)
    torch.save(membership.state_dict(), tmp_path / "membership.pt")
    state = torch.load(tmp_path / "membership.pt", weights_only=True)
    restored = Membership.from_state(state)
    restored.load_state_dict(state)
    (rows,) = data.rows_of("test")
    assert torch.equal(restored(rows["inputs"]), membership(rows["inputs"]))
    assert max(value.numel() for value in state.values() if isinstance(value, Tensor)) < 400
    with pytest.raises(InputError, match="columns"):
        restored(rows["inputs"][:, 1:])


def test_survey_is_read_from_row_numbers_and_from_columns(data: SyntheticDataModule, tmp_path: Path) -> None:
    form = draw_form(data, 300, "group", randomized=0.0)
    table = data.read().iloc[form["row"]]
    form.assign(group=table["group"].to_numpy()).to_csv(tmp_path / "rows.csv", index=False)
    table.to_csv(tmp_path / "columns.csv", index=False)
    by_row = Survey.read(tmp_path / "rows.csv", data, group="a")
    by_column = Survey.read(tmp_path / "columns.csv", data, group="a")
    assert by_row.group_names == by_column.group_names == ("b", "a")
    assert torch.equal(by_row.groups, torch.tensor((table["group"] == "a").to_numpy()).long())
    assert by_row.target is not None
    assert by_column.target is not None
    for name in ("inputs", "groups", "target"):
        assert torch.allclose(getattr(by_row, name).double(), getattr(by_column, name).double(), atol=1e-6)
    assert by_row.rows is not None
    assert by_row.rows.tolist() == form["row"].tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drop": ["hours"]}, "there is no column 'hours'"),
        ({"rows": 34}, "34 people with a known 'group'; at least 50"),
        ({"only": "a"}, "all 300 people have group = 'a'"),
        ({"rename": "sex"}, "there is no column 'group'"),
        ({"label": "maybe"}, "has the value 'maybe'"),
    ],
)
def test_surveys_that_cannot_be_used(
    data: SyntheticDataModule, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    table = data.read().sample(300, random_state=0)
    table = table.head(int(str(change.get("rows", 300)))).drop(columns=change.get("drop", []))
    table = table.rename(columns={"group": str(change.get("rename", "group"))})
    if "only" in change:
        table["group"] = str(change["only"])
    if "label" in change:
        table["label"] = str(change["label"])
    table.to_csv(tmp_path / "survey.csv", index=False)
    with pytest.raises(InputError, match=words) as error:
        Survey.read(tmp_path / "survey.csv", data)
    assert len(str(error.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("inputs", torch.full((60, 2), torch.nan), "without missing values"),
        ("inputs", torch.zeros(60), "a table of encoded columns"),
        ("groups", torch.arange(60) % 3, "ids from 0 to 1"),
        ("groups", torch.arange(60) % 2 - 1, "ids from 0 to 1"),
        ("groups", torch.arange(60) % 2 / 2, "ids from 0 to 1"),
        ("target", torch.full((60,), torch.nan), "expected 0 or 1"),
        ("target", torch.full((60,), 2), "expected 0 or 1"),
        ("target", torch.zeros(59), "expected one number of people"),
    ],
)
def test_values_that_are_no_survey(part: str, value: Tensor, words: str) -> None:
    parts = {"inputs": torch.zeros(60, 2), "groups": torch.arange(60) % 2}
    with pytest.raises(InputError, match=words):
        Survey(**parts | {part: value})  # type: ignore[arg-type]


def test_answers_that_are_not_compared_are_named(tmp_path: Path) -> None:
    data = SyntheticDataModule(n_rows=2000, seed=0)
    data.setup()
    table = data.read().sample(300, random_state=0)
    table["group"] = np.where(np.arange(300) < 20, "A", table["group"])
    table.to_csv(tmp_path / "survey.csv", index=False)
    with pytest.warns(UserWarning, match="group = A are left out"):
        assert len(Survey.read(tmp_path / "survey.csv", data)) == 280
    # A random answer was one of three: those of two groups are not those of a fair coin.
    table.assign(randomized=0.25).to_csv(tmp_path / "survey.csv", index=False)
    with pytest.raises(InputError, match="drawn from 3 groups"):
        Survey.read(tmp_path / "survey.csv", data)


def test_indicators_of_randomised_answers_are_unbiased() -> None:
    groups = torch.arange(10_000) % 4 == 0
    random = torch.Generator().manual_seed(0)
    replaced = torch.rand(10_000, generator=random) < 0.4
    reported = torch.where(replaced, torch.randint(0, 2, (10_000,), generator=random), groups.long())
    survey = Survey(torch.zeros(10_000, 1), reported, randomized=0.4)
    assert survey.indicators.mean(0).tolist() == pytest.approx([0.75, 0.25], abs=0.02)
    assert torch.allclose(survey.indicators.sum(-1), torch.ones(10_000, dtype=torch.float64))
