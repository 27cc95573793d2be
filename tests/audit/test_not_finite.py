"""A model whose weights are not finite is refused wherever a checkpoint is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.audit.command import count_rows
from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from tests.report.set_bias import with_bias

Cli = Callable[[str], None]
RUN = Path("lightning_logs/version_0")
pytestmark = pytest.mark.filterwarnings("ignore:Encountered `nan` values")  # of the test after fit
DATA = ["--data", "synthetic", "--data.n_rows", "400"]


def fit_broken(cli: Cli, options: str) -> None:
    with suppress(SystemExit):  # the test of such a model may be refused, which is not the subject here
        cli(f"fit {options} {with_bias('nan')}")


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


def test_a_run_without_s_is_refused_as_well(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    SyntheticDataModule(n_rows=400).read().drop(columns="group").to_csv("mine.csv", index=False)
    options = "--data.path mine.csv --data.target label --data.positive 1 --data.related [height,income]"
    fit_broken(cli, f"--data table {options} --trainer.max_epochs=1")
    with pytest.raises(SystemExit):
        main(["report", str(RUN)])
    assert "its weights are not finite (backbone." in capsys.readouterr().err
    assert not (RUN / "report.html").exists()


@pytest.mark.parametrize("value", [np.nan, -0.1, 1.1, np.inf])
def test_arrays_are_checked(value: float) -> None:
    probs = np.array([[0.5, value, 0.2]])
    with pytest.raises(InputError, match="numbers from 0 to 1"):
        count_rows(np.array([0, 1, 1]), probs, pd.DataFrame({"s": ["a", "b", "a"]}))
