"""Surveys for tests: people of a data set, who name their group."""

from __future__ import annotations

from pathlib import Path

from fairrf_lightning.datamodules import TabularDataModule
from fairrf_lightning.datamodules.sensitive import draw_form
from fairrf_lightning.survey import Survey


def write_survey(data: TabularDataModule, people: int, path: Path, seed: int = 0) -> Path:
    """Write the answers of people drawn from the table."""
    name = str(data.sensitive)
    form = draw_form(data, people, name, seed=seed)
    form[name] = data.read()[name].iloc[form["row"]].to_numpy()
    form.to_csv(path, index=False)
    return path


def survey_of(data: TabularDataModule, people: int) -> Survey:
    """Return the answers of the first people of the training split."""
    (rows,) = data.rows_of("train")
    inputs, groups, target, row = (rows[key][:people] for key in ("inputs", "groups", "target", "row"))
    return Survey(inputs, groups, target, row, ("a", "b"), name="group")
