"""Text of others on a terminal: of envs, of other hosts, and of files that another user may have written."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with the escape of each character that is neither printed nor a line end or a tab.

    Control characters set a terminal's title or clipboard, and move its cursor over what was printed before.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
