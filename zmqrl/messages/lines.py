"""JSON lines: one message each, decoded and checked in one pass. A wrong one is a `WireError`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from zmqrl.errors import WireError
from zmqrl.messages import agent
from zmqrl.messages.refusal import refusal

T = TypeVar("T", bound=Struct)


def plain(value: Any) -> Any:
    """JSON data of what msgspec does not know: numbers of numpy, other mappings; of anything else its text."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


_encode = msgspec.json.Encoder(enc_hook=plain).encode


def line_of(message: Struct) -> bytes:
    """The line with its end. NaN and infinities become null; text that is not Unicode gets question marks."""
    try:
        return _encode(message) + b"\n"
    except UnicodeEncodeError:  # a file name, say, that was decoded with surrogates
        data = msgspec.to_builtins(message, str_keys=True, enc_hook=plain)
        return json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n"


_child_event = msgspec.json.Decoder(agent.ChildEvent).decode
_agent_event = msgspec.json.Decoder(agent.AgentEvent).decode
_command = msgspec.json.Decoder(agent.Command).decode
_handshake = msgspec.json.Decoder(agent.Handshake).decode
_reaped = msgspec.json.Decoder(agent.Reaped).decode
_evaluate = msgspec.json.Decoder(agent.Evaluate).decode


def child_event(line: str | bytes) -> agent.ChildEvent:
    """What a process reports to its agent. WireError states what is wrong with the line."""
    found: agent.ChildEvent = decoded(_child_event, line, "event", agent.CHILD_EVENTS)
    return found


def agent_event(line: str | bytes) -> agent.AgentEvent:
    """What an agent reports to the launcher. WireError states what is wrong with the line."""
    found: agent.AgentEvent = decoded(_agent_event, line, "event", agent.AGENT_EVENTS)
    return found


def command(line: str | bytes) -> agent.Command:
    """What the launcher commands an agent. WireError states what is wrong with the line."""
    found: agent.Command = decoded(_command, line, "command", agent.COMMANDS)
    return found


def evaluate(line: str | bytes) -> agent.Evaluate:
    """What an agent sends to the evaluator. WireError states what is wrong with the line."""
    return decoded(_evaluate, line, "command", agent.COMMANDS)


def handshake(line: str | bytes) -> agent.Handshake:
    """An agent's first line. WireError states what is wrong with it."""
    return decoded(_handshake, line, "event", agent.LAUNCHER_EVENTS)


def reaped(line: str | bytes) -> agent.Reaped:
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
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as malformed:
        return WireError("not JSON", str(malformed))
    if not isinstance(data, dict):
        return WireError("not JSON", "not an object")
    if data.get(tag) == "process" and isinstance(data.get("report"), dict):
        inner = refusal(data["report"], tag, agent.REPORTS, error, f"unknown {tag}")
        if inner.reason != "value":
            return inner
    return refusal(data, tag, kinds, error, f"unknown {tag}")
