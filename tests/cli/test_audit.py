"""The command ``audit``: checkpoints, predictions with and without labels, and wrong input."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.audit import sample_size
from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from tests.audit.rows import read_audit, write_predictions
from tests.conftest import Cli, Refused
from tests.report.set_bias import with_bias

pytestmark = pytest.mark.usefixtures("cli")  # for its folder
CHECKPOINT = "lightning_logs/version_{}/checkpoints/last.ckpt"


def audited(options: str, name: str = "p.csv") -> dict[str, Any]:
    """Audit a file of predictions, and return the content of ``audit.json``."""
    main(["audit", "--predictions", name, *shlex.split(options)])
    return read_audit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--split val", "--split val: only for a checkpoint; p.csv is a file of predictions"),
        ("--trust my.Own", "--trust my.Own: only for a checkpoint"),
    ],
)
def test_options_of_a_checkpoint_are_refused_for_predictions(
    refused: Refused, options: str, message: str
) -> None:
    write_predictions()
    assert message in refused(f"audit p.csv --groups sex {options}")


@pytest.mark.parametrize(
    "option", ["--prob p", "--decision d", "--target t", "--min_rows 3", "--positive yes"]
)
def test_options_that_a_survey_does_not_use_are_refused(refused: Refused, option: str) -> None:
    Path("best.ckpt").touch()
    message = refused(f"audit best.ckpt --survey survey.csv {option}")
    assert f"leave out {option.split(maxsplit=1)[0]}." in message


def test_two_checkpoints_on_compas(cli: Cli, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    for method in ("fairrf", "arl", "fairrf --data.seed 1"):
        cli(f"fit --data compas --method {method} --trainer.max_epochs=1 --trainer.accelerator=cpu")
    paths = [CHECKPOINT.format(version) for version in range(3)]
    message = refused(f"audit --ckpt_path={paths[0]} --data=compas --against {paths[2]}")
    assert "train both with the same data and seed" in message
    assert not Path("audit").exists()
    capsys.readouterr()
    options = ["--against", paths[1], "--groups", "race,sex", "--min_rows", "100"]
    main(["audit", paths[0], *options])
    printed = capsys.readouterr().out
    result = read_audit()
    assert [one["name"] for one in result["groupings"]] == ["race", "sex", "race x sex"]
    assert result["source"] == {
        "kind": "checkpoint",
        "path": paths[0],
        "against": paths[1],
        "data": "compas",
        "split": "test",
    }
    assert result["rows"] == 1852
    verdicts = {gap["against"]["verdict"] for gap in result["groupings"][0]["gaps"]}
    assert verdicts <= {"fairer, beyond noise", "no difference shown", "less fair, beyond noise"}
    assert "Gaps by race x sex" in printed
    assert "dEO leaves out groups with fewer than 100 such rows" in printed
    assert len(pd.read_csv("audit/audit_groups.csv")) == 2 + 2 + 4
    assert not list(Path("audit").glob("*.part"))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_predictions_of_any_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_predictions()
    result = audited("--groups race,sex --against other", name)
    expected = table.assign(selected=table["prob"] >= 0.5).groupby("race")["selected"].mean()
    found = {group["name"]: group["selection_rate"] for group in result["groupings"][0]["groups"]}
    assert found == pytest.approx(expected.to_dict(), abs=1e-12)
    assert result["groupings"][0]["unknown_rows"] == 50
    printed = capsys.readouterr().out
    assert "The race of 50 rows is not known. Whatever it is, dDP lies between" in printed
    change = result["accuracy_difference"]
    right = [(table[model] >= 0.5) == table["target"] for model in ("prob", "other")]
    assert change["value"] == pytest.approx(right[0].mean() - right[1].mean(), abs=1e-12)
    assert change["verdict"] == "more accurate, beyond noise"
    assert re.search(rf"{change['value']:.4f} .* {change['low']:.3f} to {change['high']:.3f} ", printed)
    assert result["groupings"][0]["gaps"][0]["against"]["verdict"] == "less fair, beyond noise"


def test_decisions_alone() -> None:
    table = write_predictions()
    result = audited("--groups sex --decision decision --against target")
    assert {gap["mode"] for gap in result["groupings"][0]["gaps"]} == {"hard"}
    assert "auc" not in result["overall"]
    wrong = int((table["decision"] != table["target"]).sum())
    change = result["accuracy_difference"]
    assert (change["only_first_right"], change["only_second_right"]) == (0, wrong)
    assert change["verdict"] == "less accurate, beyond noise"
    assert result["overall"]["selection_rate"] == pytest.approx(table["decision"].mean(), abs=1e-12)


def test_names_and_figures_are_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = write_predictions()
    rows["sex"] = rows["sex"].map({"f": "[/b]African-American", "m": "[red]Caucasian[/red]"})
    rows.to_csv("p.csv", index=False)
    audited("--groups sex")
    printed = capsys.readouterr().out
    for name, group in rows.groupby("sex"):
        (line, scores) = [line for line in printed.splitlines() if f"│ {name} " in line]
        assert f"{(group['prob'] >= 0.5).mean():.4f}" in line
        assert f"{group['prob'].mean():.4f}" in scores
    assert "…" not in printed


def test_the_comparison_of_two_models_has_a_line_for_each_gap_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = write_predictions()
    rows["unfair"] = rows["prob"].where(rows["sex"] == "f", 0.9 - rows["target"] / 2)
    rows.to_csv("p.csv", index=False)
    for columns in ("--prob unfair --against prob", "--prob prob --against unfair"):
        result = audited(f"--groups sex {columns}")
        lines = capsys.readouterr().out.splitlines()
        of = {"hard": " ", "prob": ", prob. "}
        gaps = result["groupings"][0]["gaps"]
        shown = {f"│ {gap['gap']}{of[gap['mode']]}": gap["against"] for gap in gaps}
        shown[f"│ {result['overall']['accuracy']:.4f} "] = result["accuracy_difference"]
        for start, other in shown.items():
            (line,) = [line for line in lines if line.startswith(start) and "beyond noise" in line]
            assert f"│ {other.get('difference', other['value']):.4f} " in line
            assert f" {other['verdict']} " in line
            assert len(line) <= 80


def test_at_another_level_no_page_says_95_percent(
    capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    write_predictions()
    audited("--groups sex,sex --level 0.9")
    printed = " ".join(capsys.readouterr().out.split())
    assert "90 % interval" in printed
    assert "sex x sex" not in printed
    assert "No report.html: its intervals are at 0.95, these at 0.9." in printed
    assert not Path("audit/report.html").exists()
    assert "audit without --level" in refused("report audit")


MEASURED = {"rows", "selection_rate", "selection_rate_low", "selection_rate_high", "mean_probability"}


@pytest.fixture
def unlabelled(cli: Cli) -> pd.DataFrame:
    del cli  # for its folder
    rows = write_predictions().drop(columns="target")
    rows.to_csv("p.csv", index=False)
    rows.to_parquet("p.parquet")
    return rows


def numbers(figures: dict[str, Any]) -> set[str]:
    return {
        name for name, value in figures.items() if isinstance(value, (int, float)) and name != "estimable"
    }


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_selection_rates_and_dp_are_all_that_is_measured(
    name: str, unlabelled: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    result, printed = audited("--groups sex", name), capsys.readouterr().out
    assert result["labels"] is False
    (grouping,) = result["groupings"]
    for figures in (result["overall"], *grouping["groups"]):
        assert numbers(figures) == MEASURED
    rates = (unlabelled["prob"] >= 0.5).groupby(unlabelled["sex"]).mean()
    gaps = {(gap["gap"], gap["mode"]): gap for gap in grouping["gaps"]}
    assert gaps["dDP", "hard"]["value"] == pytest.approx(rates.max() - rates.min(), abs=1e-12)
    assert gaps["dDP", "hard"]["low"] is not None
    assert gaps["dDP", "prob"]["value"] is not None
    for gap in ("dEO", "dEOdds"):
        assert {gaps[gap, "hard"][key] for key in ("value", "low", "high", "bounds", "against")} == {None}
    lines = printed.splitlines()
    assert lines[0].startswith("No true labels: selection rates and dDP are measured; accuracy, ")
    assert lines[1].startswith("The column 'decision' was not used")
    assert lines[-3:-1] == lines[:2], "before the line of the files"
    assert len([line for line in lines if line.count("not applicable") == 2 and "│ dEO" in line]) == 4
    assert "AUC" not in printed.replace(lines[0], "")


@pytest.mark.usefixtures("unlabelled")
def test_the_report_names_nothing_that_needs_labels() -> None:
    audited("--groups sex")
    page, card = (
        Path("audit", name).read_text(encoding="utf-8") for name in ("report.html", "model_card.md")
    )
    for text in (page, card):
        assert "No true labels: selection rates and dDP are measured" in text
        assert "dEO and dEOdds are not applicable" in text
    assert "| dDP | decisions | sex |" in card
    for words in ("| dEO |", "| dEOdds |", "Accuracy", "true positive rate, %", "calibration error"):
        assert words not in card.replace("## Accuracy against fairness", "")
    assert '<p class="what">accuracy</p>' not in page


@pytest.mark.usefixtures("unlabelled")
def test_two_models_are_compared_by_selection_rates(capsys: pytest.CaptureFixture[str]) -> None:
    result = audited("--groups sex --against other")
    assert result["accuracy_difference"] is None
    assert numbers(result["against"]) == MEASURED
    gaps = {(gap["gap"], gap["mode"]): gap for gap in result["groupings"][0]["gaps"]}
    assert gaps["dDP", "hard"]["against"]["verdict"]
    assert gaps["dEO", "hard"]["against"] is None
    printed = capsys.readouterr().out
    assert "Accuracy" not in printed
    assert "| dDP | decisions | sex |" in Path("audit/model_card.md").read_text(encoding="utf-8")


def test_decisions_without_probabilities(unlabelled: pd.DataFrame) -> None:
    result = audited("--groups race --decision decision")
    assert numbers(result["overall"]) == MEASURED - {"mean_probability"}
    assert result["overall"]["selection_rate"] == pytest.approx(unlabelled["decision"].mean(), abs=1e-12)
    (gap,) = [gap for gap in result["groupings"][0]["gaps"] if gap["gap"] == "dDP"]
    assert gap["bounds"], "rows of unknown race"


def test_labels_that_are_there_are_used_and_a_named_column_must_exist(refused: Refused) -> None:
    rows = write_predictions()
    assert audited("--groups sex")["overall"]["accuracy"] is not None
    assert audited("--groups sex --target ''")["overall"]["accuracy"] is None
    assert "no column 'hired'" in refused("audit p.csv --groups sex --target hired")
    rows.assign(target=rows["target"].where(rows.index != 4)).to_csv("p.csv", index=False)
    message = refused("audit --predictions p.csv --groups sex")
    assert "row 5: expected 0 or 1 in every row; --target '' audits without" in message


def test_a_dummy_label_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions().assign(target=0).to_csv("p.csv", index=False)
    audited("--groups sex")
    assert capsys.readouterr().out.startswith("Every true label is 0: if these are not real labels, accuracy")


@pytest.mark.usefixtures("unlabelled")
def test_a_pilot_without_labels_answers_for_dp_only() -> None:
    audited("--groups sex")
    pilot = Path("audit/audit.json")
    assert sample_size(0.1, pilot=pilot).rows > 0
    with pytest.raises(InputError, match="no true labels, which --gap dEO needs"):
        sample_size(0.1, pilot=pilot, gap="dEO")


RUN = Path("lightning_logs/version_0")
DATA = ["--data", "synthetic", "--data.n_rows", "400"]


def fit_broken(cli: Cli, options: str) -> None:
    with suppress(SystemExit):  # the test of such a model may be refused, which is not the subject here
        cli(f"fit {options} {with_bias('nan')}")


@pytest.mark.filterwarnings("ignore:Encountered `nan` values")  # of the test after fit
def test_audit_certify_and_report_refuse_it(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"{' '.join(DATA)} --trainer.max_epochs=2 --data.batch_size=50"
    cli(f"fit {options}")
    fit_broken(cli, options)
    folders = [RUN.with_name(f"version_{number}") / "checkpoints" for number in (0, 1)]
    sound, broken = (str(next(folder.glob("best.ckpt"))) for folder in folders)
    SyntheticDataModule(n_rows=200).read().to_csv("sample.csv", index=False)
    runs = [str(RUN), "--against", str(RUN.with_name("version_1"))]
    for command in (
        ["audit", "--ckpt_path", broken, *DATA],
        ["audit", "--ckpt_path", sound, *DATA, "--against", broken],
        ["certify", "--ckpt_path", broken, *DATA, "--audit-sample", "sample.csv"],
        ["report", runs[2]],
        ["report", *runs],
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as error:
            main(command)
        assert error.value.code == 2
        captured = capsys.readouterr()
        assert "not finite" in captured.err
        assert broken in captured.err
        assert captured.err.count("\n") == 1
        assert "no difference shown" not in captured.out
    assert not Path("audit").exists()


@pytest.mark.filterwarnings("ignore:Encountered `nan` values")  # of the test after fit
def test_a_run_without_s_is_refused_as_well(cli: Cli, refused: Refused) -> None:
    SyntheticDataModule(n_rows=400).read().drop(columns="group").to_csv("mine.csv", index=False)
    options = "--data.path mine.csv --data.target label --data.positive 1 --data.related [height,income]"
    fit_broken(cli, f"--data table {options} --trainer.max_epochs=1")
    assert "its weights are not finite (backbone." in refused(["report", str(RUN)])
    assert not (RUN / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--groups race --prob probb", "no column 'probb'; did you mean 'prob'"),
        ("", "--groups is not given"),
        ("--groups race --nonsense 1", "--nonsense: no such option. All options: "),
        ("--groups prob", "combinations of values"),
        ("--groups sex,target", "--groups target: this column is the true class"),
        ("--groups prob,other", "too many to be groups"),
        ("--groups race --target sex", "column 'sex' has the value '.' in data row 1: expected 0 or 1"),
        (
            "--groups race --prob more",
            "column 'more' has the value 2.0 in data row 1: expected a probability",
        ),
        (
            "--groups race --prob holes",
            "column 'holes' has an empty cell in data row 8: expected a probability",
        ),
        ("--groups race --level 95", "level is 95"),
        ("--groups race --level abc", "--level: expected float"),
        ("--groups race --threshold 2", "--threshold 2"),
        ("--groups race --min_rows 0", "--min_rows 0"),
        ("--groups race --out p.parquet", "--out p.parquet: this is a file"),
    ],
)
def test_bad_input_is_told(options: str, message: str, refused: Refused) -> None:
    rows = write_predictions()
    rows.assign(more=2.0, holes=rows["prob"].where(rows.index != 7)).to_parquet("p.parquet")
    printed = refused(["audit", "--predictions", "p.parquet", *options.split()])
    assert re.search(message, printed)
    assert printed.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_told(refused: Refused) -> None:
    write_predictions()
    audited("--groups sex")
    # The file of predictions is not there: what cannot be written is told before it is read.
    for command in (["audit", "--predictions", "none.csv", "--groups", "sex"], ["report", "audit"]):
        printed = refused([*command, "--out", "p.csv/below"])
        assert printed.startswith("error: p.csv/below: cannot be written to (Not a directory); name another")
        assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prob;target;sex\n0.5;1;f\n", "p.csv: its columns are separated by ';'; write it with commas."),
        (b"prob,target,sex\n0.5,1,\xfc\n", "invalid UTF8 data; save the file as UTF-8"),
        (b"prob,target,sex,\xfc\n0.5,1,f,1\n", "save the file as UTF-8"),
        (b"target,prob,prob,sex\n1,0.2,0.3,f\n", "2 columns are named 'prob'"),
        (b"prob,target,sex\nhigh,1,f\n", "invalid value 'high'; expected numbers such as 0.25"),
    ],
)
def test_what_to_do_with_other_kinds_of_csv_is_told(content: bytes, message: str, refused: Refused) -> None:
    Path("p.csv").write_bytes(content)
    printed = refused("audit --predictions p.csv --groups sex")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("p.csv --groups sex --against last.ckpt", "p.csv is a file of predictions; name a column of it"),
        ("p.csv --groups sex --data adult", "--data: only for a checkpoint; p.csv is a file of predictions"),
        ("p.ckpt --prob p", "--prob p: only for predictions; p.ckpt is a checkpoint"),
        ("p.xlsx --groups sex", "p.xlsx: this is a spreadsheet; save it as CSV"),
        ("p.ckpt", "p.ckpt"),
        ("--groups race", "audit needs source: Checkpoint, run folder, or"),
        ("best.ckpt --config config.yaml", "--config"),
        ("best.ckpt --data adlut", "did you mean 'adult'"),
    ],
)
def test_a_wrong_source_or_option_is_told(options: str, message: str, refused: Refused) -> None:
    write_predictions().to_csv("p.ckpt", index=False)
    assert message in refused(["audit", *options.split()])


def test_decisions_that_are_not_those_of_the_probabilities_are_not_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = write_predictions()  # decided at 0.4
    differing = int(((table["prob"] >= 0.5) != table["decision"]).sum())
    expected = (
        f"The column 'decision' was not used: it differs from prob >= 0.5 in {differing} of 2,000 rows."
    )
    for name in ("p.csv", "p.parquet"):
        main(["audit", name, "--groups", "race"])
        assert expected in " ".join(capsys.readouterr().out.split())
        assert expected in read_audit()["notices"][0]
    for options in (["--decision", "decision"], ["--threshold", "0.4"]):
        main(["audit", "p.csv", "--groups", "race", *options])
        assert "was not used" not in capsys.readouterr().out
    table.assign(decision="yes").to_csv("p.csv", index=False)
    main(["audit", "p.csv", "--groups", "race"])
    assert "in 2,000 of 2,000 rows" in " ".join(capsys.readouterr().out.split())


def test_a_swapped_coding_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    table = write_predictions()
    swapped = "Rows with label 1 have the lower scores (AUC"
    for column, options in (("prob", []), ("decision", ["--decision", "decision"])):
        for values, is_swapped in ((table[column], False), (1 - table[column], True)):
            table[["race", "target"]].assign(**{column: values}).to_csv("q.csv", index=False)
            main(["audit", "q.csv", "--groups", "race", *options])
            assert (swapped in capsys.readouterr().out) is is_swapped
    random = table.assign(prob=table["other"])[["race", "target", "prob"]]
    random.to_csv("q.csv", index=False)
    main(["audit", "q.csv", "--groups", "race"])
    assert swapped not in capsys.readouterr().out
