"""Commands that the program prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairrf_lightning.messages import install_command


def test_a_clone_on_the_path_does_not_hide_how_the_package_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `python train.py` puts the clone, with the metadata that setuptools wrote there, before the environment.
    clone, environment = tmp_path / "clone", tmp_path / "environment"
    written = clone / "fairrf_lightning.egg-info"
    installed = environment / "fairrf_lightning-0.1.0.dist-info"
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    for folder, name in ((written, "PKG-INFO"), (installed, "METADATA")):
        folder.mkdir(parents=True)
        (folder / name).write_text("Metadata-Version: 2.1\nName: fairrf-lightning\nVersion: 0.1.0\n")
    (installed / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(environment)
    monkeypatch.syspath_prepend(clone)
    monkeypatch.chdir(clone)
    assert install_command("wandb") == "pip install -e '.[wandb]'"
