"""``train.py report`` on the folders that ``fit`` and ``grid`` leave."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.messages import points
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.notices import vanilla_notice
from fairrf_lightning.report.facts import Estimate
from fairrf_lightning.report.text import interval
from tests.conftest import Cli, Printed, Refused
from tests.report.set_bias import with_bias

SHORT = "--trainer.max_epochs=2 --data.batch_size=50"  # enough steps for decisions that differ
FIT = f"fit --data synthetic --data.n_rows 2000 {SHORT}"
RUNS = Path("lightning_logs")
RUN = RUNS / "version_0"
SMALL = "fit --data synthetic --data.n_rows 400 --data.batch_size 50 --trainer.max_epochs=2"
SAID = f"{SAME_DECISION[0].upper()}{SAME_DECISION[1:]}"
CLAIMS = ("No gap between groups is shown", "no gap shown", "Fairer than", "No difference in fairness")


def card_of(folder: str | Path) -> str:
    return Path(folder, "model_card.md").read_text(encoding="utf-8")


def page_of(folder: str | Path) -> str:
    return Path(folder, "report.html").read_text(encoding="utf-8")


def fit_of_table(rows: int, *, with_s: bool) -> str:
    """Write a table, and return the command that trains on it."""
    table = SyntheticDataModule(n_rows=rows).read()
    (table if with_s else table.drop(columns="group")).to_csv("mine.csv", index=False)
    options = "--data.path mine.csv --data.target label --data.positive 1 --data.related [height,income]"
    return f"fit --data table {options} {'--data.sensitive group' if with_s else ''}"


def test_a_run_is_reported_with_the_figures_that_it_logged(cli: Cli, printed: Printed) -> None:
    cli(FIT)
    assert "Wrote lightning_logs/version_0/report.html, " in printed(f"report {RUN}")
    page, card = page_of(RUN), card_of(RUN)
    last = pd.read_csv(RUN / "metrics.csv").iloc[-1]
    for text in (page, card):
        assert f"{100 * last['test_acc']:.1f} %" in text
        for gap in ("eo", "dp", "eodds"):
            assert f"{100 * last[f'test_{gap}_gap']:.2f}" in text
        assert "group was not used in training" in text
        assert "false positive rate" in text
    assert "python train.py certify" in page
    assert "python train.py audit" not in page, "the groups were looked at"
    assert "The checkpoint of epoch" in card
    assert re.search(r"\| income \| lambda \| 0\.\d{4}", card)
    section = card.split("## Certificate without the sensitive attribute")[1].split("\n## ")[0]
    assert section.rstrip().endswith("`report.html` has the commands.")


def test_the_next_commands_name_the_users_classes(cli: Cli, printed: Printed) -> None:
    Path("next_code.py").write_text(
        "from fairrf_lightning.backbones import MLP\nclass Mine(MLP):\n    '''Mine.'''\n"
    )
    following = printed(f"{SMALL} --model.backbone next_code.Mine").partition("Next:\n")[2].splitlines()
    assert len(following) == 3
    for line in following:
        cli(line.partition("train.py ")[2])
    card = card_of(RUN)
    assert "could not be evaluated" not in card
    assert "false positive rate" in card


def test_a_run_without_s_is_reported_all_the_same(cli: Cli) -> None:
    cli(f"{fit_of_table(1000, with_s=False)} {SHORT}")
    main(["report", str(RUN), "--out", "elsewhere"])
    card = card_of("elsewhere")
    assert "**Fairness to groups is not measured here**" in card
    assert "Dependence on height (penalty R) is" in card
    assert "The data have no sensitive attribute." in card
    assert "lambda" in card
    page = page_of("elsewhere")
    assert "python train.py certify lightning_logs/version_0/checkpoints/best.ckpt --template" in page
    for text in (card.replace("\\", ""), page):
        assert "version_0 on mine.csv" in text
        assert "positive decisions" in text
        assert "What cannot be known from these data" in text
        assert "1. Published correlations." in text
        assert "2. A survey." in text
    assert re.search(r"\| height \| 0\.\d{4} \|", card), "the covariance of each related feature"


def test_a_run_with_another_logger_and_no_checkpoints_says_what_is_missing(cli: Cli) -> None:
    cli(f"{FIT} --trainer.enable_checkpointing false")
    (RUN / "metrics.csv").unlink()
    main(["report", str(RUN)])
    page = page_of(RUN)
    assert "The run has no metrics.csv" in page
    assert "the run has kept no checkpoint" in page
    assert "python train.py certify" not in page, "there is nothing to certify"


def test_a_run_whose_data_are_gone_shows_what_it_logged(cli: Cli) -> None:
    cli(f"{fit_of_table(1000, with_s=True)} {SHORT}")
    Path("mine.csv").unlink()
    main(["report", str(RUN)])
    page, card = page_of(RUN), card_of(RUN)
    last = pd.read_csv(RUN / "metrics.csv").iloc[-1]
    assert f"{100 * last['test_dp_gap']:.2f}" in card
    assert "The checkpoint could not be evaluated again" in page
    assert "mine.csv" in page


def test_a_certificate_in_the_folder_is_shown_if_it_is_of_that_model(cli: Cli, refused: Refused) -> None:
    # Columns that say much about S, so that the certificate says more than the share of S alone.
    known = {"height": (0.75, 0.2), "income": (0.3, 0.5)}
    table = json.dumps(known, separators=(",", ":"))
    data = ["--data", "synthetic", "--data.n_rows", "2000", "--data.correlations", table]
    cli(f"fit {' '.join(data)} {SHORT}")
    best = RUN / "checkpoints" / "best.ckpt"
    SyntheticDataModule(n_rows=5000, seed=9, correlations=known).read().to_csv("sample.csv", index=False)
    options = ["--ckpt_path", str(best), *data]
    main(["certify", *options, "--audit-sample", "sample.csv", "--output", str(RUN / "certificate.json")])
    main(["report", str(RUN)])
    card = card_of(RUN)
    found = json.loads((RUN / "certificate.json").read_text())
    assert (
        f"certified to be at most {100 * found['rows']['hard']['bound']:.1f} points, with 95 % conf" in card
    )
    assert f"{100 * found['rows']['prob']['bound']:.2f}" in card
    assert "| income | " in card
    assert all(line in card for line in ("with all other rows together, while the gaps above", " points."))
    assert not re.search(r"dDP is at most 0\.\d{3}", card), "points, as all of the page"
    (RUN / "certificate.json").rename("mine.json")
    again = torch.load(best, weights_only=True)
    again["state_dict"]["backbone.0.bias"] += 0.1
    torch.save(again, best)  # another model under the same name
    assert "mine.json: this certificate is about another model" in refused(
        ["report", str(RUN), "--certificate", "mine.json"]
    )


def test_a_grid_ends_with_a_report_and_is_drawn_around_a_run(cli: Cli) -> None:
    grid = ["grid", "--data", "synthetic", "--data.n_rows", "1000", "--epochs", "2", "--plot", "false"]
    main([*grid, "--eta", "0.5,1", "--seeds", "2"])
    written = page_of("grid_synthetic")
    assert "3 settings on synthetic: dEO" in written
    assert "train rows" in written
    card = Path("grid_synthetic/model_card.md")
    assert "| vanilla | eta 0 (vanilla) |" in card.read_text(encoding="utf-8")
    card.unlink()
    main(["report", "grid_synthetic"])
    assert "| vanilla | eta 0 (vanilla) |" in card.read_text(encoding="utf-8")
    cli(FIT)
    main(["report", str(RUN), "--grid", "grid_synthetic"])
    of_run = card_of(RUN)
    assert "| this run | FairRF, eta" in of_run
    assert "the grid's choice" in of_run
    main([*grid, "--eta", "90", "--seeds", "2", "--out", "vanilla", "--max_accuracy_loss", "0"])
    alone = card_of("vanilla")
    assert "Model: eta 0 (vanilla)." in alone
    assert "The data do not say" not in alone
    assert "change" not in alone
    main([*grid, "--eta", "0.5", "--seeds", "2", "--out", "other", "--report", "false"])
    assert not Path("other/report.html").exists()
    with pytest.raises(SystemExit):
        main(["report", str(RUN), "--grid", "other/nothing"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["."], "no config.yaml in it"),
        (["run", "--grid", "nowhere"], "--grid nowhere: no results.csv"),
        (["run", "--certificate", "nowhere.json"], "nowhere.json: cannot be read"),
        (["run", "--certificate", "run/config.yaml"], "this is not a certificate"),
        (["broken"], "cannot be read"),
        (["list"], "expected named values, found list"),
        (["several"], "several data sets"),
        (["several", "--against", "run"], "--against needs the folder of a run"),
    ],
)
def test_wrong_folders_are_explained(arguments: list[str], expected: str, refused: Refused) -> None:
    for name, text in {"run": "a: 1", "broken": "a: [", "list": "[1]"}.items():
        Path(name).mkdir()
        (Path(name) / "config.yaml").write_text(text)
    Path("several").mkdir()
    pd.DataFrame({"key": [1, 2], "data": ["adult", "compas"], "remove": ""}).to_csv("several/results.csv")
    assert expected in refused(["report", *arguments])


def test_a_sweep_ends_with_a_report_of_the_validation_rows(cli: Cli) -> None:
    del cli  # for its folder
    sweep = ["sweep", "--data", "synthetic", "--data.n_rows", "1000", "--trials", "3", "--plot", "false"]
    main([*sweep, "--epochs", "2", "--seeds", "2"])
    card = card_of("sweep_synthetic")
    trials = pd.read_csv("sweep_synthetic/trials.csv")
    assert f"| {trials['val_covariance'].iloc[0]:.4f} " in card
    assert "S was not used" in card
    page = page_of("sweep_synthetic")
    assert "3 trials: val_covariance" in page
    assert "python train.py fit --config sweep_synthetic/chosen.yaml" in page
    main([*sweep, "--epochs", "1", "--seeds", "1", "--out", "gap", "--objective", "with_s:val_dp_gap"])
    assert "S of the validation rows was used" in card_of("gap")


def test_a_run_is_compared_with_another_one(cli: Cli, refused: Refused) -> None:
    cli(f"{FIT} --model.eta 2")
    cli(f"{FIT} --model.eta 0")
    cli(f"{FIT} --seed_everything 5")
    main(["report", str(RUNS / "version_0"), "--against", str(RUNS / "version_1")])
    card = card_of(RUN)
    (best,) = (RUNS / "version_0/checkpoints").glob("best.ckpt")
    (other,) = (RUNS / "version_1/checkpoints").glob("best.ckpt")
    main(["audit", "--data=synthetic", "--data.n_rows=2000", str(best), "--against", str(other)])
    found = json.loads(Path("audit/audit.json").read_text())
    (grouping,) = found["groupings"]
    for gap in grouping["gaps"]:
        assert f"| {100 * gap['value']:.2f} |" in card
        assert f"| {100 * gap['against']['value']:.2f} |" in card
        assert gap["against"]["verdict"] in card
    change = found["accuracy_difference"]
    ends = interval(Estimate(*(change[name] for name in ("value", "low", "high"))), signed=True)
    assert f"{points(change['value'], signed=True)} (95 %: {ends}), {change['verdict']}" in card
    for group in grouping["groups"]:
        assert f"{100 * group['selection_rate']:.2f} ({100 * group['selection_rate_low']:.2f}" in card
    assert re.search(r"\*\*.* (than|from|of) vanilla", card)
    of_audit = Path("audit/model_card.md")
    table = "| dDP | decisions | group |"
    lines = [line for text in (card, of_audit.read_text()) for line in text.splitlines() if table in line]
    assert lines[0] == lines[1]
    of_audit.unlink()
    main(["report", "audit"])
    assert of_audit.is_file()
    assert "the test rows of the two checkpoints differ" in refused(
        ["report", str(RUNS / "version_0"), "--against", str(RUNS / "version_2")]
    )


def written(folder: Path) -> Iterator[str]:
    yield page_of(folder).partition('<script type="application/json"')[0]
    yield card_of(folder)


def headline(folder: Path) -> str:
    return next(line for line in card_of(folder).splitlines() if line.startswith("**"))


def test_an_audit_says_first_and_last_that_all_decisions_are_the_same(printed: Printed) -> None:
    rows = pd.DataFrame({"prob": [0.6, 0.9] * 60, "target": [0, 1, 1, 1] * 30, "sex": list("ffm") * 40})
    rows.assign(other=[0.4, 0.6] * 60).to_csv("p.csv", index=False)
    audit = "audit --predictions p.csv --groups sex"
    lines = printed(audit).splitlines()
    assert lines[0] == lines[-2] == f"{SAID}."
    assert headline(Path("audit")) == f"**{SAID}**"
    for text in written(Path("audit")):
        assert not [claim for claim in CLAIMS if claim in text]
    assert json.loads(Path("audit/audit.json").read_text())["notices"] == [f"{SAID}."]
    printed(f"{audit} --against other")
    assert headline(Path("audit")) == f"**{SAID}**", "no comparison saves it"
    shown = printed(f"{audit} --prob other --against prob")
    assert shown.startswith(f"Of the other model: {SAME_DECISION}.")
    assert headline(Path("audit")).startswith("**prob gives everyone the same decision; a comparison")


def test_a_report_has_it_as_its_headline_with_and_without_s(cli: Cli) -> None:
    cli(f"{SMALL} {with_bias('100')}")
    main(["report", str(RUN)])
    assert headline(RUN) == f"**{SAID}**"
    for text in written(RUN):
        assert not [claim for claim in CLAIMS if claim in text]
    cli(f"{fit_of_table(400, with_s=False)} --trainer.max_epochs=1 {with_bias('-100')}")
    run = RUN.with_name("version_1")
    main(["report", str(run)])
    assert headline(run) == f"**{SAID}**"


def test_a_run_within_pretraining_is_vanilla(cli: Cli, printed: Printed) -> None:
    cli(f"{SMALL} --trainer.max_epochs=1")
    main(["report", str(RUN)])
    for text in written(RUN):
        assert "vanilla (eta 0.7, the penalty was never on)" in text
        assert "FairRF, eta 0.7" not in text
        assert "the penalty was never on (eta 0.7)" in text.replace("\\", "")
    (best,) = (RUN / "checkpoints").glob("best.ckpt")
    shown = printed(f"audit --ckpt_path {best} --data synthetic --data.n_rows 400")
    line = vanilla_notice(0.7, 0, str(best))
    assert line in shown.splitlines()
    assert line in json.loads(Path("audit/audit.json").read_text())["notices"]
    cli(SMALL)
    main(["report", str(RUN.with_name("version_1")), "--against", str(RUN)])
    for text in written(RUN.with_name("version_1")):
        assert "FairRF, eta 0.7" in text
        assert "vanilla (eta 0.7, the penalty was never on)" in text


def test_notices_of_the_run_come_before_the_verdict(cli: Cli) -> None:
    cli(f"{SMALL} {with_bias('100')}")
    record = json.loads((RUN / "run.json").read_text())
    first = "lambda was never updated: <b>train longer</b>"
    (RUN / "run.json").write_text(json.dumps(record | {"notices": [first, first, f"{SAME_DECISION}"]}))
    main(["report", str(RUN)])
    page, card = written(RUN)
    shown = "lambda was never updated: &lt;b&gt;train longer&lt;/b&gt;"
    assert page.count(shown) == 1
    assert page.index(shown) < page.index('id="verdict"')
    assert card.index(shown) < card.index("**The model")
    assert SAME_DECISION not in card, "the headline has it already"
    (RUN / "run.json").write_text(json.dumps(record | {"notices": []}))
    main(["report", str(RUN)])
    assert "Read this first" not in next(written(RUN))
