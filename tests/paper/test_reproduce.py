"""The whole command on real data, with few and short models."""

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import fairrf_lightning
from fairrf_lightning.cli import main
from fairrf_lightning.messages import install_command
from paper.plans import ETAS, PARTS, plans
from paper.report import hypervolume
from tests.conftest import Refused
from tests.experiments.test_choose import runs


def test_compas_and_the_case_study_are_reproduced_and_continued(
    cli: Callable[[str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del cli  # for its folder and arguments
    monkeypatch.setitem(ETAS, "compas", (0.3, 1.0))
    monkeypatch.setattr("paper.plans.ARL_LRS", (0.1,))
    monkeypatch.setattr("paper.plans.KSMOTE_ETAS", (0.6,))
    command = ["reproduce", "--seeds=2", "--epochs=2"]
    main([*command, "--only=compas"])
    report = (tmp_path / "reproduction/reproduction-tables.md").read_text(encoding="utf-8")
    for method in ("vanilla", "constrain_s", "arl", "ksmote", "remove_r", "fairrf"):
        assert f"| {method}" in report
    assert "0.681 ± 0.004" in report, "the numbers of the paper are shown next to ours"
    assert (tmp_path / "reproduction/figures/front_compas.svg").is_file()
    assert not (tmp_path / "docs").exists(), "tracked files are overwritten only by --out docs"
    card = (tmp_path / "reproduction/reproduction_card.md").read_text(encoding="utf-8")
    assert "| dEO | decisions | compas |" in card
    assert card.count("| chosen |") == 1
    assert "compas: dEO" in (tmp_path / "reproduction/reproduction.html").read_text(encoding="utf-8")
    first = pd.read_csv(tmp_path / "reproduction/results.csv")
    main([*command, "--only=compas,case-study"])
    second = pd.read_csv(tmp_path / "reproduction/results.csv")
    assert second.iloc[: len(first)]["key"].tolist() == first["key"].tolist(), "finished models are kept"
    tables = (tmp_path / "reproduction/reproduction-tables.md").read_text(encoding="utf-8")
    assert "Case study of lambda: ADULT" in tables
    report = (tmp_path / "reproduction/reproduction.md").read_text(encoding="utf-8")
    assert "lambda is small for features that predict Y (compas)" in report
    assert "Wrote" in capsys.readouterr().out


def test_every_part_has_a_plan() -> None:
    made = plans(PARTS)
    assert {plan.part for plan in made} == set(PARTS)
    (figure,) = (plan for plan in made if plan.part == "sensitivity")
    assert len(figure.settings) == 25
    methods = {
        setting.method.split()[0] for plan in made if plan.part == "ablation" for setting in plan.settings
    }
    assert {"random", "top_1", "constrain_all", "noisy", "fix_lambda", "worst_case", "wider"} <= methods


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--only=adlt"], "did you mean 'adult'"),
        (["--seeds=1"], "2 or more"),
        (["--epochs=0"], "epochs = 0"),
        (["--epochs=1"], "no epoch is left for the penalty"),
        (["--workers=0"], "workers = 0"),
    ],
)
def test_wrong_options_are_explained(options: list[str], expected: str, refused: Refused) -> None:
    assert expected in refused(["reproduce", *options])


def test_a_missing_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    # The packages are imported again without scipy; afterwards their parent has to hold the first ones.
    monkeypatch.setattr(fairrf_lightning, "experiments", sys.modules["fairrf_lightning.experiments"])
    for name in [name for name in sys.modules if name.startswith(("fairrf_lightning.experiments", "paper"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert install_command("reproduce") in refused(["reproduce"])


def test_without_matplotlib_nothing_is_trained(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert install_command("plot") in refused("reproduce --seeds=2 --epochs=1 --only=compas")
    assert not Path("reproduction").exists()


def test_from_a_wheel_the_command_asks_for_a_clone(
    monkeypatch: pytest.MonkeyPatch, refused: Refused, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("paper")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "paper").is_dir()])
    monkeypatch.setattr(sys.modules["fairrf_lightning.cli.main"], "_CLONE", tmp_path)
    (tmp_path / "paper").mkdir()  # the user's own
    assert "reproduce needs a clone of the repository" in refused(["reproduce"])


def test_the_hypervolume_is_the_area_of_the_staircase() -> None:
    two = runs((0.3, 0.9, 0.2, 0.0), (0.6, 0.8, 0.1, 0.0))
    volume = hypervolume(two, reference=(0.5, 0.4))
    assert volume["eo_gap"] == pytest.approx(0.3 * 0.1 + 0.4 * 0.2)
    assert volume["dp_gap"] == pytest.approx(0.4 * 0.4)
    assert hypervolume(two, reference=(0.95, 0.4)) == {"eo_gap": 0.0, "dp_gap": 0.0}
