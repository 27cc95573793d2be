"""Group rates equal fairlearn's on the same predictions."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate
from sklearn.metrics import accuracy_score

from fairrf_lightning.report.checkpoint_facts import accuracy_of, evaluate, gaps_of, groups_of
from fairrf_lightning.report.facts import Absent
from fairrf_lightning.report.run_folder import RunFolder


def test_rates_and_gaps_of_the_best_checkpoint(cli: Callable[[str], None]) -> None:
    cli("fit --data synthetic --data.n_rows 2000 --trainer.max_epochs=2")
    rows = evaluate(RunFolder("lightning_logs/version_0"))
    assert not isinstance(rows, Absent)
    decided = (rows.probabilities >= 0.5).int().numpy()
    metrics = {
        "selection rate": selection_rate,
        "true positive rate": true_positive_rate,
        "false positive rate": false_positive_rate,
        "accuracy": accuracy_score,
    }
    frame = MetricFrame(
        metrics=metrics, y_true=rows.target.numpy(), y_pred=decided, sensitive_features=rows.groups.numpy()
    )
    found = groups_of(rows)
    assert [row.group for row in found] == ["a", "b"]
    for group, row in enumerate(found):
        assert row.rows == int((rows.groups == group).sum())
        for name, estimate in row.rates.items():
            assert estimate.value == pytest.approx(frame.by_group.loc[group, name], abs=1e-12)
            assert estimate.low <= estimate.value <= estimate.high
    assert accuracy_of(rows).value == pytest.approx(frame.overall["accuracy"], abs=1e-12)
    gaps = {(gap.name, gap.mode): gap.estimate.value for gap in gaps_of(rows)}
    assert len(gaps) == 6
    assert gaps["dDP", "hard"] == pytest.approx(frame.difference()["selection rate"], abs=1e-12)
    assert gaps["dEO", "hard"] == pytest.approx(frame.difference()["true positive rate"], abs=1e-12)


def test_without_a_checkpoint_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    why = evaluate(RunFolder(tmp_path))
    assert isinstance(why, Absent)
    assert "no checkpoint" in why.reason
