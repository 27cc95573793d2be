"""A model that gives everyone the same decision, or was never penalised, is reported as that, first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.notices import vanilla_notice
from tests.report.set_bias import with_bias

Cli = Callable[[str], None]
RUN = Path("lightning_logs/version_0")
FIT = "fit --data synthetic --data.n_rows 400 --data.batch_size 50 --trainer.max_epochs=2"
SAID = f"{SAME_DECISION[0].upper()}{SAME_DECISION[1:]}"
CLAIMS = ("No gap between groups is shown", "no gap shown", "Fairer than", "No difference in fairness")


def written(folder: Path) -> Iterator[str]:
    for name in ("report.html", "model_card.md"):
        yield (folder / name).read_text(encoding="utf-8").partition('<script type="application/json"')[0]


def headline(folder: Path) -> str:
    card = (folder / "model_card.md").read_text(encoding="utf-8")
    return next(line for line in card.splitlines() if line.startswith("**"))


def test_an_audit_says_first_and_last_that_all_decisions_are_the_same(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    del cli  # for its folder
    rows = pd.DataFrame({"prob": [0.6, 0.9] * 60, "target": [1, 1, 1, 0] * 30, "sex": list("ffm") * 40})
    rows.assign(other=[0.4, 0.6] * 60).to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-2] == f"{SAID}."
    assert headline(Path("audit")) == f"**{SAID}**"
    for text in written(Path("audit")):
        assert not [claim for claim in CLAIMS if claim in text]
    assert json.loads(Path("audit/audit.json").read_text())["notices"] == [f"{SAID}."]
    main(["audit", "--predictions", "p.csv", "--groups", "sex", "--against", "other"])
    capsys.readouterr()
    assert headline(Path("audit")) == f"**{SAID}**", "no comparison saves it"
    options = ["--prob", "other", "--against", "prob"]
    main(["audit", "--predictions", "p.csv", "--groups", "sex", *options])
    assert capsys.readouterr().out.startswith(f"Of the other model: {SAME_DECISION}.")
    assert headline(Path("audit")).startswith("**prob gives everyone the same decision; a comparison")


def test_a_report_has_it_as_its_headline_with_and_without_s(cli: Cli) -> None:
    cli(f"{FIT} {with_bias('100')}")
    main(["report", str(RUN)])
    assert headline(RUN) == f"**{SAID}**"
    for text in written(RUN):
        assert not [claim for claim in CLAIMS if claim in text]
    table = SyntheticDataModule(n_rows=400).read().drop(columns="group")
    table.to_csv("mine.csv", index=False)
    options = "--data.path mine.csv --data.target label --data.positive 1 --data.related [height,income]"
    cli(f"fit --data table {options} --trainer.max_epochs=1 {with_bias('-100')}")
    run = RUN.with_name("version_1")
    main(["report", str(run)])
    assert headline(run) == f"**{SAID}**"


def test_a_run_within_pretraining_is_vanilla(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"{FIT} --trainer.max_epochs=1")
    main(["report", str(RUN)])
    for text in written(RUN):
        assert "vanilla (eta 0.7 never acted)" in text
        assert "FairRF, eta 0.7" not in text
        assert "the penalty was never on (eta 0.7)" in text.replace("\\", "")
    (best,) = (RUN / "checkpoints").glob("best.ckpt")
    capsys.readouterr()
    main(["audit", "--ckpt_path", str(best), "--data", "synthetic", "--data.n_rows", "400"])
    line = vanilla_notice(0.7, 0, str(best))
    assert line in capsys.readouterr().out.splitlines()
    assert line in json.loads(Path("audit/audit.json").read_text())["notices"]
    cli(FIT)
    main(["report", str(RUN.with_name("version_1")), "--against", str(RUN)])
    for text in written(RUN.with_name("version_1")):
        assert "FairRF, eta 0.7" in text
        assert "vanilla (eta 0.7 never acted)" in text


def test_notices_of_the_run_come_before_the_verdict(cli: Cli) -> None:
    cli(f"{FIT} {with_bias('100')}")
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
