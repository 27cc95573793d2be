"""The workspace: printed without an account, saved by the real client at a server on loopback."""

import json
import re
import sys
from typing import Any

import pytest
import wandb

from fairrf_lightning.cli import main
from fairrf_lightning.printed_command import install_command
from fairrf_lightning.tracking.wandb import GAP_LABELS, RATES
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
    assert len(patterns) == len(RATES)
    assert all(re.match(pattern, f"val_{rate}/Female") for pattern, rate in zip(patterns, RATES, strict=True))
    assert not any(re.match(pattern, "val_acc") for pattern in patterns)


def test_its_panels_show_what_runs_log(capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(_printed(capsys))
    for table in [f"pareto/{gap}_table" for gap in GAP_LABELS] + [
        f"test_groups/{rate}_table" for rate in RATES
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


def test_it_is_saved(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _log_in(server, monkeypatch)
    main(["dashboard", "--entity", "team", "--project", "adult", "--name", "Fair"])
    assert capsys.readouterr().out.startswith(f"{server.url}/team/adult?nw=")
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "adult", "Fair")
    assert view["type"] == "project-view"
    assert _sections(json.loads(view["spec"])) == _sections(_printed(capsys))


def test_it_goes_to_the_users_own_account_by_default(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _log_in(server, monkeypatch)
    main(["dashboard"])
    (view,) = server.views
    assert (view["entityName"], view["projectName"]) == ("me", "lightning_logs")


def test_what_prevents_it_is_said_in_a_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no API key is configured" in _error(capsys)
    _log_in(server, monkeypatch)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    wandb.teardown()
    assert "does not take the API key" in _error(capsys)
    _log_in(server, monkeypatch)
    server.refuse.add("UpsertView2")
    wandb.teardown()
    error = _error(capsys)
    assert "permission denied" in error
    assert "team, project 'adult'" in error


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_info:
        main(["dashboard", "--entity", "team", "--project", "adult"])
    assert exit_info.value.code == 2
    line = capsys.readouterr().err.partition("error: ")[2]
    assert line.count("\n") == 1
    return line


def test_it_is_not_saved_when_the_user_is_offline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(SystemExit):
        main(["dashboard"])
    assert "its mode is set to offline" in capsys.readouterr().err


def test_a_missing_package_is_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "fairrf_lightning.tracking.dashboard", raising=False)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(SystemExit) as exit_info:
        main(["dashboard", "--json"])
    assert exit_info.value.code == 2
    assert install_command("wandb") in capsys.readouterr().err


def _log_in(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
