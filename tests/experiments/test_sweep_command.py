"""The command in one process: real Optuna, real SQLite, real training."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
import yaml
from optuna.trial import TrialState

import fairrf_lightning
from fairrf_lightning.cli import main
from fairrf_lightning.datamodules import SyntheticDataModule, TableDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Stack
from fairrf_lightning.experiments.choose import pareto_front
from fairrf_lightning.experiments.sweep import SweepResult
from fairrf_lightning.experiments.sweep import sweep as search_settings
from fairrf_lightning.messages import install_command
from tests.conftest import Refused

SMALL = ["--data", "synthetic", "--data.n_rows", "600", "--epochs", "2", "--seeds", "2", "--batch", "3"]
DATABASE = "sqlite:///sweep_synthetic/study.db"


def trials_of(address: str = DATABASE) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="fairrf", storage=address).trials


def sweep(*options: str) -> None:
    main(["sweep", *SMALL, *options])


def test_a_sweep_goes_on_and_its_choice_is_what_fit_trains(
    cli: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tripwire(_: SyntheticDataModule) -> Any:
        raise AssertionError("the sweep looked at the test rows")

    Path("space.yaml").write_text(
        "eta: {low: 0.1, high: 1}\nlr: [0.001, 0.003]\nhidden: [[16], [8, 4]]\n"
        "every_n_steps: 2\nrule: worst_case\n"
    )
    options = ["--space", "space.yaml", "--data.seed", "5", "--seeds", "3,1", "--data.batch_size", "32"]
    with monkeypatch.context() as patch:
        patch.setattr(SyntheticDataModule, "test_dataloader", tripwire)
        patch.setattr("sys.argv", ["fairrf"])  # printed commands name the program as it was called
        sweep("--trials", "4", *options)
        before = pd.read_csv("sweep_synthetic/trials.csv")
        sweep("--trials", "7", *options)
    trials = trials_of()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 7
    after = pd.read_csv("sweep_synthetic/trials.csv")
    pd.testing.assert_frame_equal(after.iloc[:4], before.iloc[:4])
    assert after["trial"].dropna().tolist() == list(range(7))
    for name in ("pareto.png", "pareto.svg"):
        assert Path("sweep_synthetic", name).stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "Pareto front of 7 trials" in printed
    assert "S was not used; the test rows were not used." in printed
    assert "Train and test it: fairrf fit --config sweep_synthetic/chosen.yaml" in printed

    vanilla = after[(after["eta"] == 0) & (after["constant_models"] == 0)].nlargest(1, "val_acc").iloc[0]
    near = after["val_acc"] >= vanilla["val_acc"] - 0.01
    near &= after["val_balanced_acc"] >= vanilla["val_balanced_acc"] - 0.05
    near &= (after["val_positive_share"] / vanilla["val_positive_share"] - 1).abs() <= 0.5
    sound = (after["constant_models"] == 0) & (after["idle_models"] == 0)
    chosen = after[near & sound].sort_values("val_covariance").iloc[0]
    config = yaml.safe_load(Path("sweep_synthetic/chosen.yaml").read_text())
    assert config["model"]["init_args"]["eta"] == chosen["eta"]
    cli("fit --config sweep_synthetic/chosen.yaml --trainer.logger csv")
    log = pd.read_csv("lightning_logs/version_0/metrics.csv").dropna(subset="val_objective")
    best = log.sort_values("val_objective").iloc[0]
    prefix = "vanilla_" if chosen["eta"] == 0 else ""
    measured = next(
        trial.user_attrs[f"{prefix}val_acc"][0]
        for trial in trials
        if chosen["trial"] == trial.number or (prefix and trial.params["lr"] == chosen["lr"])
    )
    assert best["val_acc"] == pytest.approx(measured, abs=1e-6)
    assert "Test" in capsys.readouterr().out


def search(storage: Path | None = None, **options: Any) -> SweepResult:
    """Search from Python, without report and files."""
    data = options.pop("data", None) or SyntheticDataModule(n_rows=600, seed=0)
    small: dict[str, Any] = {"seeds": [0, 1], "epochs": 2, "batch": 3}
    return search_settings(data, storage=storage, **small | options)


def test_trials_of_a_batch_share_their_structure_and_can_be_repeated() -> None:
    result = search(Path("new/one.db"), trials=6)
    one = result.trials
    pd.testing.assert_frame_equal(one, search(trials=6).trials)
    structure = ["rule", "statistic", "pretrain_epochs", "lr"]
    for first in (0, 3):
        assert len(one.loc[first : first + 2, structure].drop_duplicates()) == 1
        assert one.loc[first : first + 2, "eta"].nunique() == 3
    assert one["lr"].nunique() == 2
    vanilla = one[one["trial"].isna()]
    assert len(vanilla) == 2
    front = pareto_front(one["val_acc"][:6], one["val_covariance"][:6])
    best = optuna.load_study(study_name="fairrf", storage="sqlite:///new/one.db").best_trials
    assert set(front) <= {trial.number for trial in best}
    assert result.setting.eta == result.chosen["eta"]
    assert "(chosen)" in repr(result)
    assert "<table" in result._repr_html_()


def test_s_has_no_part_in_an_s_free_sweep() -> None:
    table = SyntheticDataModule(n_rows=600).read()
    table.to_csv("with.csv", index=False)
    table.drop(columns="group").to_csv("without.csv", index=False)
    related = ["height", "income"]
    without = TableDataModule("without.csv", target="label", related=related, seed=0)
    with_s = TableDataModule("with.csv", target="label", related=related, sensitive="group", seed=0)
    one, other = (search(data=data, trials=3, seeds=[0]).trials for data in (without, with_s))
    pd.testing.assert_frame_equal(one, other)
    with pytest.raises(InputError, match="the data do not say which group a row belongs to"):
        search(data=without, objective="with_s:val_dp_gap")


def test_a_gap_may_be_the_objective_by_consent(capsys: pytest.CaptureFixture[str]) -> None:
    sweep("--trials", "2", "--objective", "with_s:val_eo_gap", "--plot", "false")
    assert "val_eo_gap" in pd.read_csv("sweep_synthetic/trials.csv")
    assert "S of the validation rows was used" in capsys.readouterr().out


def test_an_interrupted_batch_is_trained_when_the_sweep_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit, calls = Stack.fit, []

    def interrupted(self: Stack, *args: Any) -> None:
        calls.append(len(self.settings))
        if len(calls) == 2:
            raise KeyboardInterrupt
        fit(self, *args)

    monkeypatch.setattr(Stack, "fit", interrupted)
    with pytest.raises(SystemExit) as exit_info:
        sweep("--trials", "6")
    assert exit_info.value.code == 130
    assert "Run the same command to resume" in capsys.readouterr().err
    states = [trial.state for trial in trials_of()]
    expected = {TrialState.COMPLETE: 3, TrialState.FAIL: 3, TrialState.WAITING: 3}
    assert {state: states.count(state) for state in expected} == expected
    search(Path("sweep_synthetic/study.db"), trials=6)
    trials = trials_of()
    assert len(trials) == 9
    assert [trial.params for trial in trials[3:6]] == [trial.params for trial in trials[6:]]
    assert all(trial.state == TrialState.COMPLETE for trial in trials[6:])


@pytest.mark.parametrize("rule", ["kkt", "fixed"])
def test_a_trial_that_diverges_counts_and_spares_the_others(rule: str) -> None:
    Path("space.yaml").write_text(
        f"eta: [0.1, 0.5]\nlr: [0.001, 1.0e+30]\nrule: {rule}\nevery_n_steps: 1\npretrain_epochs: 0\n"
    )
    search(Path("study.db"), trials=8, space="space.yaml", batch=2)
    trials = trials_of("sqlite:///study.db")
    assert len(trials) == 8
    bad = [trial for trial in trials if trial.params["lr"] > 1]
    assert 0 < len(bad) < 8
    assert all("not finite" in trial.user_attrs["diverged"] for trial in bad)
    assert all(trial.state == TrialState.COMPLETE for trial in trials if trial not in bad)


def test_a_sweep_in_which_all_diverge_says_so(refused: Refused) -> None:
    Path("space.yaml").write_text("eta: [0.1, 0.5]\nlr: 1.0e+30\n")
    options = ["sweep", *SMALL, "--trials", "2", "--space", "space.yaml"]
    assert "no trial could be measured" in refused(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "trials = 0: expected 1 or more"),
        (["--workers", "0"], "workers = 0: expected 1 or more"),
        (["--seed", "-1"], "seed = -1: expected 0"),
        (["--max_accuracy_loss", "-1"], "max_accuracy_loss = -1"),
        (["--objective", "val_dp_gap"], "say so by --objective with_s:val_dp_gap"),
        (["--objective", "covariance"], "did you mean 'val_covariance'"),
        (["--storage", "mine.db"], "expected an address such as sqlite:///mine.db"),
        (["--storage", "sqlite:///none/mine.db"], "there is no folder none"),
        (["--storage", "sqlite:///notes.txt"], "this database cannot be used: "),
        (["--storage", "mysql+nodriver://me:secret@host/db"], "--storage mysql+nodriver://me:***@host/db"),
        (["--storage", "postgresql+psycopg2://me:secret@host/db"], "driver is not installed"),
        (["--space", "none.yaml"], "--space none.yaml cannot be read"),
        (["--space", "space.yaml"], "there is no parameter 'lrr'; did you mean 'lr'"),
        (["--seeds", "x"], "--seeds x"),
        (["--data.relatd", "[height]"], "relatd"),
    ],
)
def test_bad_input_ends_in_a_few_lines_and_exit_code_2(
    options: list[str], message: str, refused: Refused
) -> None:
    Path("notes.txt").write_text("no database " * 500)
    Path("space.yaml").write_text("lrr: [0.1]")
    printed = refused(["sweep", *SMALL, *options])
    assert message in printed
    assert "secret" not in printed


def test_a_study_with_other_options_is_not_mixed_up() -> None:
    storage, other = Path("study.db"), SyntheticDataModule(n_rows=600, seed=3)
    search(storage, trials=1)
    with pytest.raises(InputError, match=r"was started with other options \(data seed, objective\)"):
        search(storage, trials=2, data=other, objective="val_correlation")
    search(storage, trials=1, objective="val_correlation", study="other")


def test_a_process_that_died_before_its_first_heartbeat_does_not_block_the_study() -> None:
    storage = Path("study.db")
    search(storage, trials=1, heartbeat=1, seeds=[0])
    left = optuna.load_study(study_name="fairrf", storage="sqlite:///study.db").ask()
    result = search(storage, trials=2, heartbeat=1, seeds=[0])
    assert left.number not in result.trials["trial"].dropna().to_list()
    assert result.trials["trial"].notna().sum() == 2


def test_without_optuna_the_extra_is_named(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    # The packages are imported again without optuna; afterwards their parent has to hold the first ones.
    monkeypatch.setattr(fairrf_lightning, "experiments", sys.modules["fairrf_lightning.experiments"])
    parts = ("fairrf_lightning.cli.sweep", "fairrf_lightning.experiments")
    for name in [name for name in sys.modules if name.startswith(parts)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    printed = refused(["sweep", *SMALL])
    assert "sweep needs the package optuna; run: pip install" in printed
    assert "[sweep]" in printed


def test_without_matplotlib_nothing_is_searched(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    printed = refused(["sweep", *SMALL, "--trials", "1", "--out", "unplotted"])
    assert f"{install_command('plot')}, or --plot false" in printed
    assert not Path("unplotted").exists()
