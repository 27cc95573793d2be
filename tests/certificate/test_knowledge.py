from __future__ import annotations

from pathlib import Path

import pytest

from fairrf_lightning.certificate.knowledge import chosen_group, read_knowledge
from fairrf_lightning.errors import InputError

COLUMNS = ["age", "job=clerk", "job=nurse"]


def test_numbers_and_intervals_are_read(tmp_path: Path) -> None:
    path = tmp_path / "proxies.yaml"
    path.write_text("group: women\nshare: [0.3, 0.4]\ncorrelations:\n  age: -0.1\n  job=nurse: [0.2, 0.3]\n")
    known = read_knowledge(str(path), COLUMNS)
    assert known.names == ["age", "job=nurse"]
    assert known.box.low.tolist() == [-0.1, 0.2]
    assert known.box.high.tolist() == [-0.1, 0.3]
    assert known.share == (0.3, 0.4)
    assert (known.group, known.source, known.level) == ("women", str(path), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid YAML"),
        ("- 1", "expected the keys"),
        ("share: 0.3", "correlations is missing"),
        ("correlations: {age: 0.1}", "share is missing"),
        ("share: 1.5\ncorrelations: {age: 0.1}", "share 1.5"),
        ("share: 0.3\ncorrelations: {age: 1.1}", "age: 1.1: expected a correlation, from -1 to 1"),
        ("share: 0.3\ncorrelations: {age: [0.2, 0.1]}", "the lower first"),
        ("share: 0.3\ncorrelations: {age: yes}", "expected a number"),
        ("share: 0.3\ncorrelations: {agee: 0.1}", "did you mean 'age'"),
        ("share: 0.3\ncorrelations: {job: 0.1}", "name them, such as job=clerk, job=nurse"),
        ("shares: 0.3\ncorrelations: {age: 0.1}", "did you mean 'share'"),
    ],
)
def test_bad_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "proxies.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_knowledge(str(path), COLUMNS)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_knowledge(str(tmp_path / "no.yaml"), COLUMNS)


def test_group_must_be_named_among_many() -> None:
    assert chosen_group(["a", "b"], None, "race") == "a"
    assert chosen_group(["a", "b", "c"], "b", "race") == "b"
    with pytest.raises(InputError, match="say by --group"):
        chosen_group(["a", "b", "c"], None, "race")
    with pytest.raises(InputError, match="no such group of race"):
        chosen_group(["a", "b"], "d", "race")
    with pytest.raises(InputError, match="at least two groups"):
        chosen_group(["a"], None, "race")
