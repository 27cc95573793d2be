from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.errors import InputError


def people(num_rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "occupation": draw.choice(["manager", "farmer", "sales"], num_rows),
            "age": draw.integers(17, 91, num_rows),
            "relationship": draw.choice(["Wife", "Husband"], num_rows),
            "gain": draw.lognormal(8, 2, num_rows),
        }
    )


def test_equals_scikit_learn() -> None:
    train, other = people(300, seed=0), people(200, seed=1)
    numeric, text = ["age", "gain"], ["occupation", "relationship"]
    scaler = StandardScaler().fit(train[numeric])
    dummies = OneHotEncoder(sparse_output=False).fit(train[text])
    expected = np.hstack([scaler.transform(other[numeric]), dummies.transform(other[text])])

    encoded = TableEncoder.fit(train).transform(other)

    assert encoded.dtype == torch.float32
    np.testing.assert_allclose(encoded.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_owners_match_exact_names_only() -> None:
    # "age" is a part of the names "language" and "age=group", and "occupation" holds "manager"
    columns = {
        "language": ["en", "fr"],
        "age": [1, 2],
        "age=group": ["a", "b"],
        "occupation": ["manager"] * 2,
    }
    frame = pd.DataFrame(columns)
    encoder = TableEncoder.fit(frame)
    assert encoder.owners["age"] == [encoder.columns.index("age")]
    for name, expected in (
        ("language", ["language=en", "language=fr"]),
        ("occupation", ["occupation=manager"]),
    ):
        assert [encoder.columns[i] for i in encoder.owners[name]] == expected
    assert sorted(i for owned in encoder.owners.values() for i in owned) == list(range(6))


def test_constant_column_is_centred() -> None:
    frame = pd.DataFrame({"x": [0.1] * 7})
    encoder = TableEncoder.fit(frame)
    assert encoder.scales["x"][1] == 1.0
    assert encoder.transform(frame).abs().max() < 1e-7


def test_unseen_and_missing_categories_are_zeros() -> None:
    encoder = TableEncoder.fit(pd.DataFrame({"c": ["b", "a"]}))
    encoded = encoder.transform(pd.DataFrame({"c": ["a", "new", None, "b"]}))
    assert encoded.tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_categorical_type_keeps_categories_without_rows() -> None:
    column = pd.Categorical(["b", "b"], categories=["c", "b", "a"])
    encoder = TableEncoder.fit(pd.DataFrame({"x": column}))
    assert encoder.columns == ["x=a", "x=b", "x=c"]
    assert encoder.transform(pd.DataFrame({"x": ["c", "a"]})).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_table_without_numbers_or_without_categories() -> None:
    for known, new, expected in (({"c": ["a"]}, {"c": ["a"]}, 1.0), ({"x": [1, 3]}, {"x": [5]}, 3.0)):
        encoder = TableEncoder.fit(pd.DataFrame(known))
        assert encoder.transform(pd.DataFrame(new)).tolist() == [[expected]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_number_is_refused_by_name(bad: float) -> None:
    with pytest.raises(InputError, match="'x' has 1 missing or infinite"):
        TableEncoder.fit(pd.DataFrame({"x": [1.0, bad], "y": [1, 2]}))


def test_missing_column_is_refused_by_name() -> None:
    encoder = TableEncoder.fit(people(5, seed=0))
    with pytest.raises(InputError, match="age"):
        encoder.transform(people(5, seed=0).drop(columns="age"))


@given(
    numbers=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    texts=st.lists(st.text(max_size=3), min_size=1, max_size=20),
)
def test_state_of_plain_values_restores_the_encoder(numbers: list[float], texts: list[str]) -> None:
    size = min(len(numbers), len(texts))
    frame = pd.DataFrame({"n": numbers[:size], "t": texts[:size]})
    encoder = TableEncoder.fit(frame)
    restored = TableEncoder.from_state(encoder.state())
    assert restored == encoder
    assert torch.equal(restored.transform(frame), encoder.transform(frame))
    assert encoder.transform(frame)[:, 1:].sum(1).tolist() == [1.0] * size
