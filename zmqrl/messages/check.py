"""What a command or an agent, its template and a check process send each other: JSON lines within one machine.

Arguments and values of calls are JSON text of Python, since they may have infinities and integers of any size. The
three paragraphs of a docstring are columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from zmqrl.messages.fields import Bytes, Text, kinds_of
from zmqrl.messages.lines import decoded
from zmqrl.types import Count, Finite, Name

Data: TypeAlias = Annotated[str, Meta(max_length=1 << 32)]
"""JSON text of Python. Initial weights are the largest."""


class _Message(Struct, frozen=True, forbid_unknown_fields=True, tag_field="check", tag=True):
    """Unknown fields are refused."""


class Call(_Message, frozen=True):
    """Call a function of zmqrl, which may import the user's code, in a new check process.

    Command to template: one call at a time; an empty line ends the process early.

    An unknown function is an error of the call.
    """

    function: Name
    """`module:name`."""
    arguments: Data
    """A list."""
    dump_s: Finite
    """The process writes its frames to the log each time that this has passed."""


class Become(_Message, frozen=True):
    """Be a process of a run: the template itself, or a fork of it.

    Command to template: after the last call, for the host agent. Agent to its template: at each start.

    An invalid one ends the template.
    """

    words: tuple[Bytes, ...]
    """The command line that the process would be started with."""
    environment: tuple[tuple[Bytes, Bytes], ...]
    """Names and values."""
    log: Bytes = ""
    """Path of the file that its stderr is appended to; empty where a descriptor of it is sent."""


class Stage(_Message, frozen=True):
    """What the function does from now on.

    Check process to command: at the start of each part.

    The last one is named when the process hangs or ends.
    """

    name: Name
    known: Data = "null"
    """The value as far as it is known."""
    settle_s: Finite | None = None
    """The call ends with `known` if nothing comes within this time."""
    is_limited: bool = True
    """False: it may take any time, and the limit begins again after it."""


class Answer(_Message, frozen=True):
    """The value of the function, or what it raised.

    Check process to command: at the end of the call, and of the process.

    An unknown class of errors is a fault of zmqrl.
    """

    value: Data = "null"
    error: Name | None = None
    """Class of `zmqrl.errors`; `user`: an exception of the user's code; empty: of zmqrl."""
    text: Text = ""
    fields: Data = "{}"
    """Attributes of the error."""
    traceback: Text = ""
    """Traceback of an exception of the user's code, without the frames of zmqrl that it begins with."""


class Ended(_Message, frozen=True):
    """The check process was reaped, and all that it had started.

    Template to command: at the end of each call.

    A missing one ends the template.
    """

    exit_code: int
    left: tuple[Count, ...] = ()
    """Pids of processes that could not be ended."""


Report: TypeAlias = Stage | Answer | Ended
Request: TypeAlias = Call | Become
MESSAGES = kinds_of((*get_args(Request), *get_args(Report)))
_request, _report = msgspec.json.Decoder(Request).decode, msgspec.json.Decoder(Report).decode


def data_of(value: Any) -> str:
    """JSON text of plain data."""
    return json.dumps(value, separators=(",", ":"))


def read_request(content: bytes) -> Request:
    """What a command has sent. WireError states what is wrong with the line."""
    found: Request = decoded(_request, content, "check", MESSAGES)
    return found


def read_report(content: bytes) -> Report:
    """What a template or a check process has sent. WireError states what is wrong with the line."""
    found: Report = decoded(_report, content, "check", MESSAGES)
    return found
