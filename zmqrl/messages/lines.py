"""JSON lines: one message each, decoded and checked in one pass. A wrong one is a `WireError`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from zmqrl.errors import WireError
from zmqrl.messages.agent import AGENT_EVENTS, REPORTS, AgentEvent
from zmqrl.messages.command import COMMANDS, Command, Evaluate
from zmqrl.messages.fields import MOST_EXPLAINED_BYTES, refusal
from zmqrl.messages.orchestrator import LAUNCHER_EVENTS, Handshake, Reaped
from zmqrl.messages.process import CHILD_EVENTS, ChildEvent
from zmqrl.types import LARGEST_FINITE, WHOLE_LIMIT

T = TypeVar("T", bound=Struct)
MOST_CHARACTERS, MOST_ENTRIES, DEEPEST = 10_000, 1_000, 16
"""Limits of what is shown: characters of a text, entries of a list or mapping, depth of lists within lists."""
_child_event = msgspec.json.Decoder(ChildEvent).decode
_agent_event = msgspec.json.Decoder(AgentEvent).decode
_command = msgspec.json.Decoder(Command).decode
_handshake = msgspec.json.Decoder(Handshake).decode
_reaped = msgspec.json.Decoder(Reaped).decode
_evaluate = msgspec.json.Decoder(Evaluate).decode


def shown(value: Any, depth: int = 0) -> Any:
    """Any value of a user's code as JSON data that every receiver takes.

    Numbers that a message does not carry (NaN, infinities, integers of more than 62 bits) are text, and so are keys and
    values that JSON does not know. A user's `__str__` may raise.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < WHOLE_LIMIT:
        return int(value)
    if isinstance(value, float) and abs(value) <= LARGEST_FINITE:
        return float(value)
    if depth < DEEPEST and isinstance(value, Mapping):
        entries = itertools.islice(value.items(), MOST_ENTRIES)
        return {_text_of(key): shown(inner, depth + 1) for key, inner in entries}
    if depth < DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [shown(inner, depth + 1) for inner in itertools.islice(value, MOST_ENTRIES)]
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)) and depth < DEEPEST:
        return shown(value.item(), depth + 1)
    return _text_of(value)


def _text_of(value: Any) -> str:
    try:
        return str(value)[:MOST_CHARACTERS]
    except Exception as error:  # noqa: BLE001 - `__str__` is the user's code, and the fault it belongs to must be sent
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"


def plain(value: Any) -> Any:
    """JSON data of what msgspec does not know: numbers of numpy, other mappings; of anything else its text."""
    if isinstance(value, Mapping):
        return dict(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        return value.item()
    return _text_of(value)


_encode = msgspec.json.Encoder(enc_hook=plain).encode


def line_of(message: Struct) -> bytes:
    """The line with its end. NaN and infinities become null; text that is not Unicode gets question marks."""
    try:
        return _encode(message) + b"\n"
    except UnicodeEncodeError:  # a file name, say, that was decoded with surrogates
        data = msgspec.to_builtins(message, str_keys=True, enc_hook=plain)
        return _encode(_readable(data)) + b"\n"


def _readable(data: Any) -> Any:
    """JSON data with a question mark for each surrogate in its text."""
    if isinstance(data, str):
        return data.encode(errors="replace").decode()
    if isinstance(data, dict):
        return {_readable(key): _readable(inner) for key, inner in data.items()}
    return [_readable(inner) for inner in data] if isinstance(data, (list, tuple)) else data


def child_event(line: str | bytes) -> ChildEvent:
    """What a process reports to its agent. WireError states what is wrong with the line."""
    found: ChildEvent = decoded(_child_event, line, "event", CHILD_EVENTS)
    return found


def agent_event(line: str | bytes) -> AgentEvent:
    """What an agent reports to the launcher. WireError states what is wrong with the line."""
    found: AgentEvent = decoded(_agent_event, line, "event", AGENT_EVENTS)
    return found


def command(line: str | bytes) -> Command:
    """What the launcher commands an agent. WireError states what is wrong with the line."""
    found: Command = decoded(_command, line, "command", COMMANDS)
    return found


def evaluate(line: str | bytes) -> Evaluate:
    """What an agent sends to the evaluator. WireError states what is wrong with the line."""
    return decoded(_evaluate, line, "command", COMMANDS)


def handshake(line: str | bytes) -> Handshake:
    """An agent's first line. WireError states what is wrong with it."""
    return decoded(_handshake, line, "event", LAUNCHER_EVENTS)


def reaped(line: str | bytes) -> Reaped:
    """What a reaper prints. WireError states what is wrong with it."""
    try:
        return _reaped(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError("not JSON", str(error)) from error


def decoded(decode: Callable[[str | bytes], T], line: str | bytes, tag: str, kinds: Mapping[str, type[Struct]]) -> T:
    """What `decode` makes of a line of one of `kinds`. WireError states what is wrong with it."""
    try:
        return decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _refusal(line, tag, kinds, error) from error


def _refusal(line: str | bytes, tag: str, kinds: Mapping[str, type[Struct]], error: Exception) -> WireError:
    if len(line) > MOST_EXPLAINED_BYTES:
        return WireError("value", f"{len(line)} bytes: {error}")
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as malformed:
        return WireError("not JSON", str(malformed))
    if not isinstance(data, dict):
        return WireError("not JSON", "not an object")
    if data.get(tag) == "process" and isinstance(data.get("report"), dict):
        inner = refusal(data["report"], tag, REPORTS, error, f"unknown {tag}")
        if inner.reason != "value":
            return inner
    return refusal(data, tag, kinds, error, f"unknown {tag}")
