"""When a report is written."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """Return the date and time, in UTC."""
    return f"{datetime.now(timezone.utc):%d %B %Y, %H:%M UTC}"
