"""Which groups a gap lies between, in words: a gap alone does not say whom it harms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairrf_lightning.audit.analysis import nothing_to_compare
from fairrf_lightning.report.wording import percent


def about_groups(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each grouping who is selected most and least often, or why nothing is compared."""
    for grouping in result["groupings"]:
        if why := nothing_to_compare(grouping):
            yield why
            continue
        estimable = [group for group in grouping["groups"] if group["estimable"]]
        rates = {group["name"]: float(group["selection_rate"]) for group in estimable}
        if len(rates) > 1:
            most, least = max(rates, key=rates.__getitem__), min(rates, key=rates.__getitem__)
            yield (
                f"Selection rates by {grouping['name']}: highest for {most} ({percent(rates[most])}), lowest "
                f"for {least} ({percent(rates[least])})."
            )
