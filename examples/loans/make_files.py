"""Make the files of the README's example: loan applications without a recorded gender.

The people are invented. Women work part time and in care more often, which lowers their income, and past
decisions favoured other applicants beyond that. ``gender`` is only in ``survey.csv``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


def people(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return applications with the gender of each applicant."""
    woman = rng.random(rows) < 0.48
    age = rng.integers(20, 66, rows)
    children = rng.binomial(3, 0.3, rows)
    part_time = rng.random(rows) < np.where(woman, 0.25 + 0.15 * (children > 0), 0.06)
    chances = np.where(woman[:, None], [0.4, 0.4, 0.2], [0.1, 0.35, 0.55]).cumsum(1)
    sector = np.array(["care", "office", "technical"])[(rng.random((rows, 1)) > chances).sum(1)]
    years = np.clip((age - 20) * rng.beta(2, 1.5, rows) * np.where(part_time, 0.6, 1.0), 0, None).round()
    income = np.exp(rng.normal(7.6, 0.3, rows)) * (1 + 0.015 * years) * np.where(part_time, 0.6, 1.0)
    income *= np.where(sector == "care", 0.85, 1.0)
    amount = np.exp(rng.normal(9.3, 0.5, rows))
    owner = rng.random(rows) < 1 / (1 + np.exp(-(age - 45) / 10))
    score = 1.2 * np.log(income / 2000) + 0.04 * years - 0.7 * np.log(amount / 11000)
    score += 0.5 * owner - 0.6 * part_time - 0.4 * (sector == "care") - 0.1
    approved = rng.random(rows) < 1 / (1 + np.exp(-1.5 * score))
    return pd.DataFrame(
        {
            "age": age,
            "children": children,
            "employment": np.where(part_time, "part time", "full time"),
            "sector": sector,
            "years_employed": years.astype(int),
            "monthly_income": income.round(-1).astype(int),
            "housing": np.where(owner, "own", "rent"),
            "amount": amount.round(-2).astype(int),
            "approved": np.where(approved, "yes", "no"),
            "gender": np.where(woman, "woman", "man"),
        }
    )


def main() -> None:
    """Write the files next to this script."""
    rng = np.random.default_rng(2022)
    people(4000, rng).drop(columns="gender").to_csv(HERE / "applications.csv", index=False)
    people(200, rng).drop(columns=["gender", "approved"]).to_csv(HERE / "new_applications.csv", index=False)
    people(400, rng).to_csv(HERE / "survey.csv", index=False)


if __name__ == "__main__":
    main()
