"""Text of the user's in Markdown: shown as it is, never as markup."""

from __future__ import annotations

import html
import re
from typing import Any

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")


def escape_markdown(value: Any) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> escape_markdown("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    text = " ".join(html.escape(str(value), quote=False).splitlines())
    return _SPECIAL.sub(r"\\\1", text)
