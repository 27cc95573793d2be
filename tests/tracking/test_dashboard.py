"""The workspace: printed without an account, saved by the real client at a server on loopback."""

import json
import re
import sys
from typing import Any

import pytest
import wandb

from fairrf_lightning.cli import main
from fairrf_lightning.messages import install_command
from fairrf_lightning.tracking.wandb import GAP_LABELS, RATE_LABELS
from tests.conftest import Refused
from tests.tracking.conftest import set_environment
from tests.tracking.wandb_server import Server

SECTIONS = ["Accuracy against gaps", "Lambda paths", "Penalties", "Groups", "Sweeps"]


def _printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["dashboard", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _sections(spec: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    sections = spec["section"]["panelBankConfig"]["sections"]
    return {section["name"]: [panel["config"] for panel in section["panels"]] for section in sections}


def test_it_is_printed_without_an_account(capsys: pytest.CaptureFixture[str]) -> None:
    sections = _sections(_printed(capsys))
    assert list(sections) == SECTIONS
    scatters = [(panel.get("xAxis"), panel.get("yAxis")) for panel in sections["Accuracy against gaps"]]
    assert {(f"summary:test_{gap}", "summary:test_acc") for gap in GAP_LABELS} <= set(scatters)
    (weights,) = sections["Lambda paths"]
    assert weights["xAxis"] == "epoch"
    assert re.match(weights["metricRegex"], "lambda/marital-status")
    patterns = [panel["metricRegex"] for panel in sections["Groups"] if "metricRegex" in panel]
    assert len(patterns) == len(RATE_LABELS)
    assert all(
        re.match(pattern, f"val_{rate}/Female") for pattern, rate in zip(patterns, RATE_LABELS, strict=True)
    )
    assert not any(re.match(pattern, "val_acc") for pattern in patterns)


def test_its_panels_show_what_runs_log(capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(_printed(capsys))
    for table in [f"pareto/{gap}_table" for gap in GAP_LABELS] + [
        f"test_groups/{rate}_table" for rate in RATE_LABELS
    ]:
        assert table in text
    for name in [
        "chosen/val_acc",
        "chosen/val_eo_gap",
        "eta.value",
        "beta.value",
        "train_penalty",
        "val_objective",
    ]:
        assert f'{name}"' in text


def test_it_is_saved(online: Server, capsys: pytest.CaptureFixture[str]) -> None:
    main(["dashboard", "--entity", "team", "--project", "adult", "--name", "Fair"])
    assert capsys.readouterr().out.startswith(f"{online.url}/team/adult?nw=")
    (view,) = online.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "adult", "Fair")
    assert view["type"] == "project-view"
    assert _sections(json.loads(view["spec"])) == _sections(_printed(capsys))


def test_it_goes_to_the_users_own_account_by_default(online: Server) -> None:
    main(["dashboard"])
    (view,) = online.views
    assert (view["entityName"], view["projectName"]) == ("me", "lightning_logs")


def test_what_prevents_it_is_said_in_a_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    save = "dashboard --entity team --project adult"
    assert "no API key is configured" in refused(save)
    set_environment(monkeypatch, server.environment(key="x" * 40))
    wandb.teardown()
    assert "does not take the API key" in refused(save)
    set_environment(monkeypatch, server.environment())
    server.refuse.add("UpsertView2")
    wandb.teardown()
    error = refused(save)
    assert "permission denied" in error
    assert "team, project 'adult'" in error
    assert error.count("\n") == 1


def test_it_is_not_saved_when_the_user_is_offline(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "its mode is set to offline" in refused("dashboard")


def test_a_missing_package_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    for module in ("cli", "tracking"):
        monkeypatch.delitem(sys.modules, f"fairrf_lightning.{module}.dashboard", raising=False)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert install_command("wandb") in refused("dashboard --json")
