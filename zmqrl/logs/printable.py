"""Text of others on a terminal: of envs, of other hosts, and of files that another user may have written."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

SPACES = "\n\t\u00a0\u3000"
"""Spaces and line ends that stay as they are, in addition to the usual space."""


def printable(text: str) -> str:
    """`text` with the escape of each character that is neither printed nor a line end or a tab.

    Control characters set a terminal's title or clipboard, and move its cursor over what was printed before.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in SPACES else c.encode("unicode_escape").decode() for c in text)


def printable_writer(stream: BinaryIO) -> Callable[[bytes], bool]:
    """A function that writes what another host sends to `stream`, `printable`, and returns True."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(chunk: bytes) -> bool:
        stream.write(printable(decoder.decode(chunk)).encode())
        stream.flush()
        return True

    return write


def printable_data(data: Any) -> Any:
    """JSON data in which each text is `printable`."""
    if isinstance(data, Mapping):
        return {printable_data(key): printable_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [printable_data(value) for value in data]
    return printable(data) if isinstance(data, str) else data
