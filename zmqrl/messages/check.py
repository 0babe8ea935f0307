"""What a command, its template and a check process send each other: JSON lines on pipes of one machine.

Arguments and values of calls are JSON text of Python, since they may have infinities and integers of any size. The
three paragraphs of a docstring are columns of the tables in docs/protocol.md.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from zmqrl.messages.fields import Text, kinds_of
from zmqrl.messages.lines import decoded, line_of
from zmqrl.types import Count, Finite, Name

Data: TypeAlias = Annotated[str, Meta(max_length=1 << 32)]
"""JSON text of Python. Initial weights are the largest."""


class _Message(Struct, frozen=True, forbid_unknown_fields=True, tag_field="check", tag=True):
    """Unknown fields are refused."""


class Call(_Message, frozen=True):
    """Call a function of zmqrl, which may import the user's code, in a new check process.

    Command to template: once its template runs, one call at a time.

    An unknown function is an error of the call.
    """

    function: Name
    """`module:name`."""
    arguments: Data
    """A list."""
    limit_s: Finite
    waiting_s: Finite
    """After this long the place of the call is reported for the first time."""


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """The newest frame of the user's code, else the newest frame."""

    file: Text
    line: Count
    function: Text


class Stage(_Message, frozen=True):
    """What the function does from now on.

    Check process to template: at the start of each part.

    The last one is named when the process hangs or ends.
    """

    name: Name
    known: Data = "null"
    """The value as far as it is known."""
    settle_s: Finite | None = None
    """The call ends with `known` if nothing comes within this time."""


class Returned(_Message, frozen=True):
    """The value of the function.

    Check process to template: at the end of the call.

    Whatever else the process does is cut short.
    """

    value: Data


class Raised(_Message, frozen=True):
    """An error that the function raised.

    Check process to template: at the end of the call.

    An unknown kind is a fault of zmqrl.
    """

    kind: Name
    """Class of `zmqrl.errors`; `user`: an exception of the user's code; empty: of zmqrl."""
    text: Text
    fields: Data = "{}"
    """Attributes of the error."""
    traceback: Text = ""
    """Of another exception, without the frames of zmqrl that it begins with."""


class Waiting(_Message, frozen=True):
    """The place where a call is.

    Template to command: every few seconds of a long call.

    It is shown.
    """

    stage: Name
    place: Place


class Ended(_Message, frozen=True):
    """The check process was reaped, and what it had started.

    Template to command: at the end of each call.

    The template is not used any more where the line is invalid.
    """

    answer: Returned | Raised | None
    stage: Stage
    cause: Name = ""
    """Without an answer: how the process ended, or why it was ended."""
    place: Place | None = None
    log: tuple[Text, ...] = ()
    """Last lines of its stderr."""
    left: tuple[Count, ...] = ()
    """Pids of processes that could not be ended."""


FromCheck: TypeAlias = Stage | Returned | Raised
FromTemplate: TypeAlias = Waiting | Ended
MESSAGES = kinds_of((Call, *get_args(FromCheck), *get_args(FromTemplate)))
_call, _from_check, _from_template = (msgspec.json.Decoder(kind).decode for kind in (Call, FromCheck, FromTemplate))


def data_of(value: Any) -> str:
    """JSON text of plain data."""
    return json.dumps(value, separators=(",", ":"))


def line(message: Call | FromCheck | FromTemplate) -> bytes:
    """With its end."""
    return line_of(message)


def read_call(content: bytes) -> Call:
    """What a command has sent. WireError states what is wrong with the line."""
    found: Call = decoded(_call, content, "check", MESSAGES)
    return found


def read_from_check(content: bytes) -> FromCheck:
    """What a check process has sent. WireError states what is wrong with the line."""
    found: FromCheck = decoded(_from_check, content, "check", MESSAGES)
    return found


def read_from_template(content: bytes) -> FromTemplate:
    """What a template has sent. WireError states what is wrong with the line."""
    found: FromTemplate = decoded(_from_template, content, "check", MESSAGES)
    return found
