import re
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, grid
from fairrf_lightning.messages import install_command
from tests.conftest import Refused

SMALL = ["--data", "synthetic", "--data.n_rows", "1000", "--epochs", "2"]


def test_a_grid_writes_results_and_plots_and_recommends(capsys: pytest.CaptureFixture[str]) -> None:
    main(["grid", *SMALL, "--eta", "0.2,0.5", "--beta", "0.4,0.6", "--seeds", "2"])
    printed = capsys.readouterr().out
    for part in (
        "Test split",
        "accuracy",
        "dEO",
        "dDP",
        "Recommended without S: eta",
        "with S on validation",
    ):
        assert part in printed
    results = pd.read_csv("grid_synthetic/results.csv")
    assert len(results) == (1 + 2 * 2) * 2
    assert results["eta"].unique().tolist() == [0, 0.2, 0.5]
    assert Path("grid_synthetic/pareto.png").stat().st_size > 10_000
    assert "<svg" in Path("grid_synthetic/pareto.svg").read_text()


@pytest.mark.filterwarnings("ignore:lambda was never updated")
@pytest.mark.parametrize(("interval", "lines"), [("500", 1), ("2", 0), ("null", 0)])
def test_a_grid_whose_lambda_was_never_updated_ends_with_it(
    interval: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["grid", *SMALL, "--eta", "0.2", "--seeds", "2", "--plot", "false", "--every_n_steps", interval])
    after = capsys.readouterr().out.partition("Recommended without S")[2]
    assert after.count("lambda was never updated in 2 of 2 models") == lines


def test_a_grid_goes_on_with_the_rows_of_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["grid", *SMALL, "--out", "mine", "--plot", "false", "--seeds", "3,8"]
    main([*options, "--eta", "0.3"])
    before = pd.read_csv("mine/results.csv")
    main([*options, "--eta", "0.3,0.7"])
    after = pd.read_csv("mine/results.csv")
    pd.testing.assert_frame_equal(after.iloc[: len(before)], before)
    assert after["eta"].tolist() == [0, 0, 0.3, 0.3, 0.7, 0.7]
    assert after["seed"].tolist() == [3, 8] * 3
    assert "pareto" not in capsys.readouterr().out


def test_a_table_without_a_sensitive_column_gets_a_recommendation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = SyntheticDataModule(n_rows=1000).read().drop(columns="group")
    table.to_csv("mine.csv", index=False)
    options = ["--data.path", "mine.csv", "--data.target", "label", "--data.positive", "1"]
    options += ["--data.related", "[height,income]", "--epochs", "2", "--eta", "0.3", "--seeds", "2"]
    main(["grid", "--data", "table", *options])
    printed = capsys.readouterr().out
    assert "Recommended without S" in printed
    assert "Gaps are not reported" in printed
    assert "dEO" not in printed


def test_options_of_the_data_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*SMALL, "--data.seed", "4", "--eta", "0.3", "--seeds", "1", "--plot", "false"]
    main(["grid", *small, "--data.related", "[height]"])
    assert "--data.seed 4 has no effect; each of --seeds is a split" in capsys.readouterr().out
    results = pd.read_csv("grid_synthetic/results.csv")
    assert (results["related"] == "height").all()
    assert results["data_options"].str.contains('"n_rows": 1000').all()


def test_a_grid_of_arl_turns_up_the_adversary(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*SMALL, "--data.batch_size", "64", "--seeds", "2"]
    main(["grid", *small, "--method", "arl", "--adversary_lr", "0.1,1", "--pretrain_steps", "0"])
    printed = capsys.readouterr().out
    assert "Recommended without S: ARL, adversary_lr" in printed
    assert "the highest mean validation accuracy" in printed
    results = pd.read_csv("grid_synthetic/results.csv")
    results = results.sort_values("adversary_lr")
    assert results["adversary_lr"].tolist() == [0, 0, 0.1, 0.1, 1, 1]
    assert results["method"].tolist() == ["fairrf"] * 2 + ["arl"] * 4
    assert (results["eta"] == 0).all()


def test_a_grid_of_ksmote_is_one_on_balanced_data(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", "ksmote", "--eta", "0.1", "--seeds", "2", "--plot", "false"]
    options += ["--data.batch_size", "64"]
    main(["grid", *SMALL, *options])
    results = pd.read_csv("grid_synthetic/results.csv")
    assert (results["related"] == "cluster").all()
    assert "cluster 1.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eta", "0.3"], "no data: name a data set, for example --data adult"),
        (["--data", "adlt"], "did you mean 'adult'"),
        ([*SMALL, "--eta", "a,b"], "--eta: expected float. Got value: a"),
        ([*SMALL, "--eta", "-1"], "eta = -1"),
        ([*SMALL, "--beta", "0"], "beta = 0"),
        ([*SMALL, "--model", "alr"], "did you mean 'arl'"),
        (
            [*SMALL, "--model", "my.Own"],
            "--model my.Own: a grid trains fairrf and arl only; train other models by fit",
        ),
        ([*SMALL, "--method", "arl", "--adversary_lr", "-1"], "adversary_lr = -1"),
        ([*SMALL, "--method", "arl", "--eta", "0.3"], "--eta 0.3: it has no effect on arl"),
        ([*SMALL, "--method", "arl", "--beta", "0.3"], "--beta 0.3: it has no effect on arl"),
        ([*SMALL, "--adversary_lr", "0.3"], "--adversary_lr 0.3: it has no effect on fairrf"),
        ([*SMALL, "--pretrain_steps", "3"], "--pretrain_steps 3: it has no effect on fairrf"),
        ([*SMALL, "--workers", "0"], "workers = 0"),
        ([*SMALL, "--seeds", "0"], "--seeds 0"),
        ([*SMALL, "--seeds", "x"], "--seeds x"),
        ([*SMALL, "--epochs", "0"], "epochs = 0"),
        ([*SMALL, "--lr", "0"], "lr = 0"),
        ([*SMALL, "--max_accuracy_loss", "-1"], "max_accuracy_loss = -1"),
        ([*SMALL, "--backbone", "mpl"], "mpl"),
        ([*SMALL, "--data.relatd", "[height]"], "relatd"),
        ([*SMALL, "--data.related", "[heigt]"], "did you mean 'height'"),
    ],
)
def test_bad_input_ends_in_a_few_lines_and_exit_code_2(
    options: list[str], message: str, refused: Refused
) -> None:
    printed = refused(["grid", *options])
    assert message in printed
    assert len(printed.splitlines()) <= 6


def test_without_matplotlib_the_plot_is_explained_before_anything_is_trained(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["grid", *SMALL, "--eta", "0.3", "--seeds", "1"]
    assert f"{install_command('plot')}, or --plot false" in refused(options)
    assert not Path("grid_synthetic").exists()
    main([*options, "--plot", "false"])
    assert len(pd.read_csv("grid_synthetic/results.csv")) == 2


def test_every_option_of_a_model_is_one_of_grid(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["grid", "--help"])
    options = set(re.findall(r"^  --(\w+)", capsys.readouterr().out, re.MULTILINE))
    of_data = {"related", "remove", "expose_sensitive", "method"}  # --data.related, --method remove_r, ...
    assert {field.name for field in (*fields(Setting), *fields(Schedule))} - of_data <= options


def test_a_grid_from_python_shows_its_table_and_recommendation() -> None:
    make_data = partial(SyntheticDataModule, n_rows=600, batch_size=64)
    result = grid(make_data, eta=[0.3], seeds=2, schedule=Schedule(epochs=2))
    assert result.table()["eta"].tolist() == ["0", "0.3"]
    assert result.recommended["eta"] in (0, 0.3)
    assert set(result.front("dp_gap").index) <= {0, 1}
    assert "Recommended without S: eta" in repr(result)
    assert result._repr_html_().startswith("<table")
    with pytest.raises(InputError, match=r"--adversary_lr 0[.]1: it has no effect on fairrf"):
        grid(make_data, adversary_lr=[0.1])
