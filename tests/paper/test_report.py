"""The page and its figures, from a table with every part of the evaluation."""

from pathlib import Path

import pandas as pd

from paper.numbers import CASE_STUDY
from paper.report import draw_figures, write_page
from tests.paper.test_claims import part


def all_parts() -> pd.DataFrame:
    """Return five runs of a few settings of every part."""
    parts = []
    for data in ("adult", "compas", "lsac"):
        parts += [part(data, data, method, 0.1) for method in ("vanilla", "remove_r")]
        parts += [part(data, data, "fairrf", 0.05, eta=eta) for eta in (0.3, 0.6)]
        parts += [part(data, data, "arl", 0.09, adversary_lr=lr, eta=0.0) for lr in (0.1, 1.0)]
    for data, features in CASE_STUDY.items():
        ablated = ("fairrf", "fix_lambda", "constrain_all", "random 1", "random 2", "top_1 age", "noisy 1")
        parts += [part("ablation", data, "vanilla", 0.1, eta=0.0)]
        parts += [part("ablation", data, method, 0.05) for method in ablated]
        for name in ("linear", "svm", "mlp"):
            parts += [part("backbones", data, "vanilla", 0.1, backbone=name)]
            parts += [part("backbones", data, "fairrf", 0.05, backbone=name)]
        known = {f"{column}/{name}": 0.5 for name in features for column in ("lambda", "rho_y", "rho_s")}
        parts.append(part("case-study", data, "case_study", 0.1, **known))
    cells = [(eta, beta) for eta in (0.2, 0.4) for beta in (0.4, 0.8)]
    parts += [
        part("sensitivity", "adult", "fairrf", 0.1 - eta / 5, eta=eta, beta=beta) for eta, beta in cells
    ]
    results = pd.concat(parts, ignore_index=True)
    deviations = {f"test_{gap}_mean_deviation": results[f"test_{gap}_gap"] / 2 for gap in ("eo", "dp")}
    return results.assign(test_positive_share=0.3, test_worst_group_auc=0.9, **deviations)


def test_every_part_has_a_section_and_its_figure(tmp_path: Path) -> None:
    results = all_parts()
    constant = (results["part"] == "adult") & (results["method"] == "remove_r") & (results["seed"] == 0)
    results.loc[constant, "test_positive_share"] = 0.0
    page = write_page(results, tmp_path).read_text(encoding="utf-8")
    draw_figures(results, tmp_path / "figures")
    tables = (tmp_path / "reproduction-tables.md").read_text(encoding="utf-8")
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == [
        "## Ledger of claims",
        "## Checks beyond the paper (S out of the inputs)",
        "## Sensitivity to eta and beta (Adult)",
    ]
    ledger = page.partition("## Checks")[0]
    assert f"**Of {ledger.count(' | ') // 3 - 1} claims: " in page
    assert [line for line in tables.splitlines() if line.startswith("## ")] == [
        *(f"## {data}, S out of the inputs" for data in ("ADULT", "COMPAS", "LSAC")),
        *(
            f"## {title}: {data}"
            for data in ("ADULT", "COMPAS")
            for title in ("Ablation of the related features", "Backbones", "Case study of lambda")
        ),
    ]
    assert "| fairrf (without S) | 0.6 |" in tables
    assert "| remove_r: same decision for everyone in 1 of 5 models |" in tables
    assert "| lambda is even | not testable |" in page
    for name in ("front_adult", "front_compas", "front_lsac", "sensitivity"):
        assert f"figures/{name}.svg" in page
        assert (tmp_path / "figures" / f"{name}.svg").stat().st_size > 5_000
        assert (tmp_path / "figures" / f"{name}.png").is_file()
