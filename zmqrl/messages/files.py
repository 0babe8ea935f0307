"""Messages in files: requests to a running launcher, the connection file of a host, `run.json`.

The three paragraphs of a docstring are columns of a table in docs/protocol.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from zmqrl.config.plan import Boot
from zmqrl.errors import WireError
from zmqrl.messages.agent import Join
from zmqrl.messages.fields import Text, refusal_of
from zmqrl.types import Count, Finite, Name

T = TypeVar("T", bound=Struct)
WorkerCount = Annotated[int, Meta(ge=0, lt=1 << 16)]


class ScaleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the number of workers of hosts, all of it or nothing.

    Another command to the launcher: `requests/<name>.json` of the run directory, by `zmqrl scale` and `drain`.

    A malformed one is removed, counted and answered with `refused`; so is one that names an unknown host.
    """

    scale: dict[Name, WorkerCount]


class RequestAnswer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What became of a request: one of the two.

    Launcher to another command: `requests/<name>.answer`, within a second.

    A malformed one fails the command that waits for it.
    """

    done: Text | None = None
    refused: Text | None = None

    def __post_init__(self) -> None:
        """ValueError, which refuses the message: neither is given, or both."""
        if (self.done is None) == (self.refused is None):
            raise ValueError("either `done` or `refused` is needed")


class ConnectionFile(Struct, frozen=True, forbid_unknown_fields=True):
    """By which a host that SSH cannot reach joins a run: where the broker is, and a one-time token. Mode 0600.

    Launcher to the agent of such a host: in the run's private folder, once the broker is there; its user copies it
    there for `zmqrl worker --connect`. Removed when the host has joined.

    Another format, unknown fields or a file that others can read: exit code 2, and nothing is started. A token that
    was used: exit code 2, and the run is not affected.
    """

    format: Count
    boot: Boot
    """Of the host's agent (`config/plan.py`)."""
    join: Join


class RunRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """Which process drives the run of a directory.

    Launcher to every other command: `run.json`, at the start of each attempt and at its end.

    A malformed one, or one of a later version, counts as none: `status`, `stop` and `resume` do not find the run.
    """

    run_id: Text
    pid: Count
    start_time: Count
    host: Text
    started_at: Finite
    preset: Text | None
    ended_at: Finite | None = None
    """Unix time; a run of `zmqrl.train` ends before its process does."""
    lineage: Text | None = None
    """Id of the lineage, which all attempts share; None: the last attempt was of zmqrl 0.1."""
    attempt: Count = 1
    job: Text | None = None
    """The engine's job that ends with the launcher (`--submit`); `down` ends it from any machine."""
    in_thread: bool = False
    """The launcher is a thread of a process of the user, which no signal may end: `stop` requests it by a file."""


FILES: Mapping[str, type[Struct]] = {
    "request": ScaleRequest,
    "answer": RequestAnswer,
    "connection file": ConnectionFile,
    "run.json": RunRecord,
}


def decode(kind: type[T], content: str | bytes) -> T:
    """A message of this type. WireError states what is wrong with the content."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as malformed:
            raise WireError("not JSON", str(malformed)) from error
        return _converted(kind, data)


def _converted(kind: type[T], data: Any) -> T:
    """From data with surrogates (names of files that are not UTF-8), which msgspec does not decode."""
    if not isinstance(data, dict):
        raise WireError("not JSON", "not an object")
    try:
        return msgspec.convert(data, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refusal_of(data.keys(), kind, kind.__name__, error) from error
