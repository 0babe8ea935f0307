"""Messages in files: requests to a running launcher, the connection file of a host, `run.json`.

The three paragraphs of a docstring are columns of a table in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from zmqrl.errors import WireError
from zmqrl.messages.fields import Name, Text
from zmqrl.messages.refusal import refusal_of

T = TypeVar("T", bound=Struct)
WorkerCount = Annotated[int, Meta(ge=0, lt=1 << 16)]


class ScaleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the number of workers of hosts, all of it or nothing.

    Another command to the launcher: `requests/<name>.json` of the run directory, by `zmqrl scale` and `drain`.

    A malformed one is removed, counted and answered with `refused`; so is one that names an unknown host.
    """

    scale: dict[Name, WorkerCount]


class RequestAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a request: one of the two.

    Launcher to another command: `requests/<name>.answer`, within a second.

    A malformed one fails the command that waits for it.
    """

    done: Text | None = None
    refused: Text | None = None


FILES: Mapping[str, type[Struct]] = {"request": ScaleRequest, "answer": RequestAnswer}


def decode(kind: type[T], content: str | bytes) -> T:
    """A message of this type. WireError says what is wrong with the content."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refusal(kind, content, error) from error


def _refusal(kind: type[Struct], content: str | bytes, error: Exception) -> WireError:
    try:
        data = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as malformed:
        return WireError("not JSON", str(malformed))
    if not isinstance(data, dict):
        return WireError("not JSON", "not an object")
    return refusal_of(data.keys(), kind, kind.__name__, error)
