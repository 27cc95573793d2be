"""A command is a typed function: its signature gives the options, its docstring the help."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from fairrf_lightning.cli.parsing import DataOptions, DataOverrides, call, takes_options_of
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError


def audit(
    source: Path,
    groups: list[str] | None = None,
    levels: list[float] = [0.95],  # noqa: B006 - as a command would have it
    kind: Literal["gap", "ratio"] = "gap",
    *,
    min_rows: int = 10,
    plot: bool = True,
) -> dict[str, Any]:
    """Audit a model.

    More about it, with ``code``.

    Args:
        source: Checkpoint or file of predictions.
        groups: Columns to compare by.
        levels: Confidence levels.
        kind: What to compute.
        min_rows: Smaller groups are not compared.
        plot: Draw the gaps.

    Examples:
        python train.py audit best.ckpt
    """
    return dict(locals())


def train(data: DataOptions, seeds: int = 5) -> tuple[DataOptions, int]:
    """Train on data.

    Args:
        data: Data set.
        seeds: Number of seeds.
    """
    return data, seeds


def parse(text: str) -> dict[str, Any]:
    result: dict[str, Any] = call(audit, text.split(), "audit")
    return result


def test_types_come_from_the_signature() -> None:
    found = parse("best.ckpt --min_rows 3 --plot=false --kind ratio")
    assert found == {
        "source": Path("best.ckpt"),
        "groups": None,
        "levels": [0.95],
        "kind": "ratio",
        "min_rows": 3,
        "plot": False,
    }


@pytest.mark.parametrize("text", ["race,sex", "[race,sex]", "[race, sex]", "race sex", '["race","sex"]'])
def test_lists_are_written_with_and_without_brackets(text: str) -> None:
    args = ["best.ckpt", "--groups", *([text] if "," in text else text.split())]
    assert call(audit, args, "audit")["groups"] == ["race", "sex"]
    assert call(audit, [*args[1:], "best.ckpt"], "audit")["source"] == Path("best.ckpt")


@pytest.mark.parametrize(
    "text",
    [
        "--groups race sex best.ckpt --min_rows 9",
        "--groups race sex best.ckpt --min_rows 9 --plot",
        "--min_rows 9 --groups race sex --source best.ckpt",
        "--source best.ckpt --groups race sex --min_rows 9",
        "--levels 0.5 0.95 --min_rows 9 --groups race sex best.ckpt --plot true",
    ],
)
def test_values_of_other_options_do_not_lengthen_a_list(text: str) -> None:
    found = parse(text)
    assert (found["groups"], found["source"], found["min_rows"]) == (["race", "sex"], Path("best.ckpt"), 9)


def test_list_items_keep_their_type() -> None:
    assert parse("a --levels 0.5,1 --groups 1,2")["levels"] == [0.5, 1.0]
    assert parse("a --groups 1,true")["groups"] == ["1", "true"]
    assert parse("a --groups=")["groups"] == []


def test_flags_dashes_and_earlier_names_are_understood() -> None:
    assert parse("a --plot --min-rows 4")["min_rows"] == 4
    assert parse("--source a")["source"] == Path("a")
    assert parse("--ckpt_path a")["source"] == parse("--predictions a")["source"] == Path("a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "audit needs source: Checkpoint or file"),
        ("a b", "audit: unexpected argument 'b'"),
        ("a --grops sex", "--grops: no such option; did you mean --groups? All options: "),
        ("a --min_rows x", "--min_rows: expected int"),
        ("a --kind gpa", "--kind: "),
        ("a --levels 0.5,high", "--levels: "),
        ("a --groups", "--groups: expected a value"),
    ],
)
def test_wrong_arguments_are_explained(text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_help_comes_from_the_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for part in ("Usage: python train.py audit source [options]", "Columns to compare by.", "with code."):
        assert part in shown
    for part in ("--groups A,B,...", "--kind gap|ratio", "Default: 0.95.", "Default: true.", "best.ckpt"):
        assert part in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_data_are_named_as_in_fit() -> None:
    data, seeds = call(train, ["--data", "synthetic", "--data.n_rows", "60", "--seeds", "2"], "grid")
    assert seeds == 2
    made = data.make(seed=3)
    assert isinstance(made, SyntheticDataModule)
    assert made.seed == 3
    with pytest.raises(InputError, match="no data: name a data set"):
        call(train, [], "grid")
    with pytest.raises(InputError, match="did you mean 'adult'"):
        call(train, ["--data", "adlt"], "grid")
    with pytest.raises(InputError, match="did you mean 'n_rows'"):
        call(train, ["--data", "synthetic", "--data.n_row", "60"], "grid")


def test_a_command_takes_the_options_of_an_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    @takes_options_of(audit, "source", "groups")
    def command(data: DataOptions, *, out: Path | None = None, **options: Any) -> dict[str, Any]:
        """Audit some data.

        Args:
            data: Data set.
            out: Folder.
            options: Passed on.
        """
        return options | {"out": out, "data": data.class_path.rpartition(".")[2]}

    found = call(command, ["--data", "synthetic", "--min_rows", "3", "--out", "x"], "mine")
    assert found == {
        "levels": [0.95],
        "kind": "gap",
        "min_rows": 3,
        "plot": True,
        "out": Path("x"),
        "data": "SyntheticDataModule",
    }
    with pytest.raises(InputError, match=r"--groups: no such option.* mine --help"):
        call(command, ["--data", "synthetic", "--groups", "a"], "mine")
    with pytest.raises(SystemExit):
        call(command, ["--help"], "mine")
    shown = capsys.readouterr().out
    places = [shown.index(name) for name in ("--data NAME", "--min_rows N", "Smaller groups", "--out PATH")]
    assert places == sorted(places)
    assert "Passed on" not in shown


def test_lists_among_the_options_of_a_checkpoint_need_no_brackets() -> None:
    def measure(checkpoint: Path, *, data: DataOverrides) -> dict[str, Any]:
        del checkpoint
        return data.options

    for text in ("--data.groups a,b --data.seed 3", "--data.groups=[a,b] --data.seed=3"):
        assert call(measure, ["best.ckpt", *text.split()], "measure") == {"groups": ["a", "b"], "seed": 3}
