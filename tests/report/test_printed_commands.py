"""Every command that a report, an audit or ``suggest`` prints runs as printed."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from tests.conftest import Cli

FEW = "--trainer.max_epochs=2 --data.batch_size=50"
RUN = Path("lightning_logs/version_0")
# A full grid takes a minute; these options only make it smaller.
SMALLER = {"grid": ["--eta", "0.5", "--seeds", "2", "--epochs", "2", "--plot", "false"]}


def write_table(name: str, *, with_s: bool) -> None:
    table = SyntheticDataModule(n_rows=400).read()
    (table if with_s else table.drop(columns="group")).to_csv(name, index=False)


def fit_table(cli: Cli, more: str = "", *, with_s: bool) -> None:
    write_table("it's_mine.csv", with_s=with_s)
    named = "--data.path it's_mine.csv --data.target label --data.positive 1 --data.related [height,income]"
    sensitive = "--data.sensitive group" if with_s else ""
    cli(f"fit --data table {named} {sensitive} {FEW} {more}")


def sections(page: Path) -> dict[str, list[str]]:
    """Return the commands of each section of a page."""
    text = page.read_text(encoding="utf-8")
    found = {}
    for name, block in re.findall(r'<section id="(\w+)"(.*?)</section>', text, flags=re.DOTALL):
        commands = re.findall(r"<pre[^>]*><code>(.*?)</code>", block, flags=re.DOTALL)
        found[name] = [line for of in commands for line in html.unescape(of).splitlines()]
    return found


def run_all(commands: list[str]) -> None:
    for line in commands:
        program, script, *args = shlex.split(line)
        assert (program, script) == ("python", "train.py")
        quiet = ["--trainer.enable_progress_bar=false"] if args[0] == "fit" else []
        main([*args, *SMALLER.get(args[0], []), *quiet])


def test_commands_for_a_run_without_s(cli: Cli) -> None:
    fit_table(cli, with_s=False)
    main(["report", str(RUN)])
    found = sections(RUN / "report.html")
    assert not {"groups", "gaps", "front"} & set(found), "nothing can fill them"
    assert "certificate" not in found, "its commands are those of the section on what is not known"
    run_all(found["unknown"])
    card = RUN / "model_card.md"
    assert "The certificate adds nothing about the decisions" in card.read_text(encoding="utf-8")
    run_all(found["comparison"])
    again = card.read_text(encoding="utf-8")
    assert re.search(r"accuracy · \d\d\.\d % against \d\d\.\d %", again)
    assert "| related feature | this model | vanilla | change |" in again
    assert "Dependence on height (penalty R) is 0." in again
    assert "airness to groups is not measured here**" in again
    assert sections(RUN / "report.html")["comparison"] == []


def test_commands_for_a_run_with_s(cli: Cli) -> None:
    fit_table(cli, "--model.eta 0", with_s=True)
    (RUN / "metrics.csv").unlink()
    main(["report", str(RUN)])
    found = sections(RUN / "report.html")
    assert {name for name, commands in found.items() if commands} == {
        "comparison",
        "front",
        "training",
        "certificate",
    }
    for name in ("comparison", "front", "training", "certificate"):
        run_all(found[name])
    assert (RUN / "grid/results.csv").is_file()
    assert (RUN / "logged/version_0/report.html").is_file()
    assert json.loads((RUN / "certificate.json").read_text())["num_rows"] == 120


def test_a_file_to_fill_in_is_not_overwritten(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    fit_table(cli, with_s=False)
    main(["report", str(RUN)])
    template, *_ = sections(RUN / "report.html")["unknown"]
    (RUN / "proxies.yaml").write_text("share: 0.4\n")
    run_all([template])
    assert (RUN / "proxies.yaml").read_text() == "share: 0.4\n"
    assert "it was not changed" in capsys.readouterr().out


def test_commands_for_an_audit_of_a_checkpoint(cli: Cli) -> None:
    fit_table(cli, with_s=True)
    (best,) = (RUN / "checkpoints").glob("best.ckpt")
    main(["audit", "--ckpt_path", str(best)])
    found = sections(Path("audit/report.html"))
    assert found["training"] == found["data"] == [f"python train.py report {RUN}"]
    run_all(found["training"])
    run_all(found["certificate"])
    assert not found["comparison"]
    best.rename("alone.ckpt")
    main(["audit", "alone.ckpt"])
    assert not any(sections(Path("audit/report.html")).values()), "nothing is known of its run"


def test_the_command_of_suggest_trains_on_the_same_data(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    del cli  # for its folder
    table = SyntheticDataModule(n_rows=2000).read().rename(columns={"height": "the height"})
    table.to_csv("it's_mine.csv", index=False)
    data = ["--data", "table", "--data.path=it's_mine.csv", "--data.target", "label", "--data.positive=1"]
    main(["suggest", *data, "--sensitive", "group", "--seed", "1", "--data.related", "[income]"])
    printed = capsys.readouterr().out
    command = printed.rpartition("Train with them: ")[2].strip()
    assert "\n" not in command
    run_all([f"{command} --trainer.max_epochs=1"])
    record = json.loads((RUN / "run.json").read_text())
    assert "the height" in record["related"]
    assert record["sensitive"] == "group", "S does not become an input"


def test_a_run_that_was_resumed_is_trained_again_from_the_start(cli: Cli) -> None:
    fit_table(cli, with_s=False)
    fit_table(cli, f"--ckpt_path {RUN}/checkpoints/last.ckpt --trainer.max_epochs=3", with_s=False)
    resumed = RUN.with_name("version_1")
    main(["report", str(resumed)])
    run_all(sections(resumed / "report.html")["comparison"])
    (best,) = (resumed / "vanilla/version_0/checkpoints").glob("best.ckpt")
    assert torch.load(best, weights_only=True)["hyper_parameters"]["eta"] == 0


def test_no_commands_are_printed_that_need_a_table_which_is_gone(cli: Cli) -> None:
    fit_table(cli, with_s=True)
    Path("it's_mine.csv").unlink()
    main(["report", str(RUN)])
    assert not any(sections(RUN / "report.html").values())
