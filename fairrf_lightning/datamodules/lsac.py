"""The law school admissions data that the paper calls LSAC."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule, keep_rows, text_as_categories
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.presets import preset

_PRESET = preset("datamodules", "lsac")["init_args"]
_COMMIT = "45b1a2cda9c6e07867811a476944b2093d015640"


class LSACDataModule(TabularDataModule):
    """LSAC: is an applicant admitted to a US law school?

    Datasheet:

    - Origin: applications to public law schools, 2005 to 2008, gathered by Project SEAPHE; the file
      ``processed_data.csv`` in the repository of the paper's authors, who imputed missing values.
    - Licence: none is stated.
    - Rows: 65,308; none is dropped by default.
    - Label: ``admit``, 16,124 rows (24.7 %), whatever the paper says of the bar exam.
    - S: ``sex``, in the file 0 (female, 28,280 rows) and 1 (male, 37,028 rows) as in SEAPHE's
      codebook; 25.1 % of the women and 24.4 % of the men are admitted.
    - Related features of the paper: ``Race``, ``Year``, ``resident``.
    - Known flaws: ``Year`` is ``200x`` in 346 rows, all of them admitted, which leaks the label; ``GPA``
      is 0 in 94 rows, where it was imputed; ``LSAT`` is above its maximum of 180 in 2 rows; 14,917
      rows repeat another one; ``URM`` (under-represented minority) is a function of ``Race``; which
      law school an application went to is not in the file. With S out of the inputs there is hardly
      a gap to close.

    Args:
        drop_flawed: Drop the 346 rows whose ``Year`` leaks the label and the 94 whose ``GPA`` is 0.
        kwargs: Options of :class:`TabularDataModule`.
    """

    name = "lsac"
    target = "admit"
    sensitive = "sex"
    columns = ("LSAT", "GPA", "resident", "Year", "sex", "Race", "URM")
    default_related = tuple(_PRESET["related"])
    table_options = ("drop_flawed",)
    files = (
        RemoteFile(
            name="law_school/processed_data.csv",
            sha256="3e578237e71a8c5eee70710b51992e4c5fc61cd6abf1cef24f70ffa3f2624578",
            size=2_312_116,
            url=f"https://raw.githubusercontent.com/TianxiangZhao/fairlearn/{_COMMIT}/data/law_school.zip",
            zip_member="law_school/processed_data.csv",
        ),
    )

    def __init__(self, *, drop_flawed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drop_flawed = drop_flawed

    def read(self) -> pd.DataFrame:
        """Return the file's rows, with names for the sexes."""
        table = pd.read_csv(fetch(self.files[0], self.data_dir))
        if self.drop_flawed:
            sound = table["Year"].ne("200x") & table["GPA"].ne(0)
            table = keep_rows(table, sound, "Year 200x, which leaks the label, or an imputed GPA of 0")
        table["sex"] = table["sex"].map({0: "female", 1: "male"})
        return text_as_categories(table[[*self.columns, self.target]])
