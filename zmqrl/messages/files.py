"""Messages in files: requests to a running launcher, the connection file of a host, `run.json`.

The three paragraphs of a docstring are columns of a table in docs/protocol.md.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection
from zmqrl.errors import WireError
from zmqrl.messages.command import Join
from zmqrl.messages.fields import PathText, Text, refusal_of
from zmqrl.types import Count, Finite, Name

T = TypeVar("T", bound=Struct)
WorkerCount = Annotated[int, Meta(ge=0, lt=1 << 16)]
MODERATE = 1e12
Moderate = Annotated[float, Meta(ge=-MODERATE, le=MODERATE)]
"""A number that fits in a column."""


class ScaleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the number of workers of hosts, and add hosts to the run; all of it or nothing.

    Another command to the launcher: `requests/<name>.json` of the run directory, by `zmqrl scale`, `drain` and `apply`.

    A malformed one is removed, counted and answered with `refused`; so is one that names an unknown host. One that an
    earlier attempt left is removed.
    """

    scale: dict[Name, WorkerCount]
    hosts: dict[Name, HostSection] = {}
    """Sections of hosts of `scale` that the run does not have, or that are not part of it now."""


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
    """File by which a host that SSH cannot reach joins a run: where the broker is, and a one-time token. Mode 0600.

    Launcher to the agent of such a host: in the run's private folder, once the broker is there; its user copies it
    there for `zmqrl worker --connect`. Removed when the host has joined.

    Another format, unknown fields or a file that others can read: exit code 2, and nothing is started. A token that
    was used: exit code 2, and the run is not affected.
    """

    format: Count
    boot: Boot
    """Start record of the host's agent, as a process reads it from its stdin (`config/plan.py`)."""
    join: Join


class RunRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """Which process drives the run of a directory.

    Launcher to every other command: `run.json`, at the start of each attempt and at its end.

    A malformed one, or one of a later version: exit code 2 of `status`, `stop`, `--resume` and the other commands to
    a run.
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
    earlier_ids: tuple[Text, ...] = ()
    """Run ids of the last attempts before this one: commands find the run by them too."""


class PublishedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """The row of a live run in the list of a lab, for all users of the launcher's machine.

    Launcher to a command of any user: `RUN_ID.run` in the register of the machine, for `zmqrl runs --lab`, every 5 s
    until the run ends.

    A malformed one, one of a later version, one of another owner than its `uid`, and one whose launcher has ended are
    left out.
    """

    run_id: Name
    uid: Count
    pid: Count
    start_time: Count
    kernel: Name
    """Kernel and pid namespace of the launcher."""
    host: Name
    env: Name
    algorithm: Name
    state: Name
    env_steps: Count
    train_return_mean_100: Moderate | None
    started_at: Moderate


class LauncherReady(Struct, frozen=True, forbid_unknown_fields=True):
    """The run of a launcher that another machine has started, all of whose processes are READY.

    Launcher to the command that started it: `zmqrl launch --on`, on stdout behind `ZMQRL-READY`, once.

    A malformed one fails the command; the launcher continues.
    """

    run_id: Text
    run_dir: Text
    """Absolute path on the launcher's host."""


class HeldFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a run directory that a copy has, or the beginning of one.

    Copy to sender: part of a copy request.

    As for the copy request.
    """

    nbytes: Count
    sha256: Text


class CopyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a copy of a run directory has; only the rest is sent.

    Copy to sender: a line on stdin of `zmqrl send-run` on the run's host, by `zmqrl fetch`.

    A malformed one ends the sender with exit code 1. Digests that do not match cost a transfer of the whole file.
    """

    held: dict[Text, HeldFile]
    """Whole files by their path in the run directory."""
    parts: dict[Text, HeldFile]
    """Beginnings of files whose transfer was cut."""


class CopiedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The begin of a file of a run directory; its bytes follow in frames, then a `CopiedEnd`.

    Sender to copy: a frame on stdout of `zmqrl send-run`.

    A malformed one, or a path outside of the run directory, fails the copy; what was received whole is kept.
    """

    path: PathText
    offset: Count
    """Bytes that the copy has."""


class CopiedEnd(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a file of a run directory.

    Sender to copy: a frame behind the bytes of the file.

    Another digest than that of the bytes received fails the copy, and the file is not kept.
    """

    sha256: Text
    """Digest of the whole file."""


class NotCopied(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a run directory that is not sent.

    Sender to copy: a frame on stdout of `zmqrl send-run`.

    A malformed one fails the copy.
    """

    path: Text
    cause: Text


class RetiredFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that the copy has, and the run no longer.

    Sender to copy: a frame on stdout of `zmqrl send-run`.

    A malformed one, or a path of something else, fails the copy.
    """

    path: PathText


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
    """Message from data with surrogates (names of files that are not UTF-8), which msgspec does not decode."""
    if not isinstance(data, dict):
        raise WireError("not JSON", "not an object")
    try:
        return msgspec.convert(data, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refusal_of(data.keys(), kind, kind.__name__, error) from error
