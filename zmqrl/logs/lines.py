"""JSON lines between the processes of a run: which there are, and what their fields must be.

A line is checked once, by whoever reads it: the agent those of its children and of the launcher, the launcher those of
its agents. What the reader needs is required; further fields pass unchecked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zmqrl.errors import WireError

MOST_TEXT = 1 << 20
MOST_WORKERS = 1 << 16
ROLES = ("broker", "learner", "worker", "evaluator")
LEDGER = ("produced", "stored", "in_flight", "duplicates_refused")
Check: TypeAlias = Callable[[Any], bool]
Fields: TypeAlias = Mapping[str, Check]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _index(value: Any) -> bool:
    return _count(value) and value < MOST_WORKERS


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 62


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300


def _number(value: Any) -> bool:
    """Also what is not finite: a return may be."""
    return _finite(value) or type(value) is float


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT


def _role(value: Any) -> bool:
    return value in ROLES


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _map(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _has(**fields: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(name in value and fields[name](value[name]) for name in fields)


def _ports(value: Any) -> bool:
    return _list(_count)(value) and len(value) == 3 and max(value) < 1 << 16


_USAGE = _has(pss_mb=_finite, cpu=_finite)
_NOTICE = _has(version=_list(_count), key=_text, nbytes=_count, sha256=_text, env_steps=_count)
_LEDGER = _or_none(_has(**dict.fromkeys(LEDGER, _whole), dropped=_map(_whole)))


@dataclass(frozen=True)
class Line:
    """Fields of one kind of line."""

    required: Fields = field(default_factory=dict)
    optional: Fields = field(default_factory=dict)

    def check(self, kind: str, data: Mapping[str, Any]) -> None:
        """WireError names the first field that is missing or wrong."""
        for name, check in self.required.items():
            if name not in data:
                raise WireError("fields", f"{kind}: no {name}")
            if not check(data[name]):
                raise WireError("value", f"{kind}.{name}")
        for name, check in self.optional.items():
            if name in data and not check(data[name]):
                raise WireError("value", f"{kind}.{name}")


_OF_PROCESS: Fields = {"role": _role, "index": _index}
_FAULT = Line({"error": _text}, {"detail": _map(lambda _: True)})

CHILD_EVENTS: Mapping[str, Line] = {
    "ready": Line(),
    "left": Line(),
    "notice": Line({"notice": _NOTICE}),
    "listening": Line({"ports": _ports}),
    "refused": Line({"counts": _map(_count)}),
    "host_here": Line({"here": _text, "workers": _list(_index)}),
    "host_lost": Line({"lost": _text}),
    "worker_state": Line({"member": _role, "place": _index, "spawn": _count, "state": _text}),
    "first_step": Line({"wall": _finite}),
    "worker": Line({}, dict.fromkeys(("env_steps", "env_steps_per_s", "wait_fraction", "episodes"), _finite)),
    "metrics": Line({"values": _map(_finite)}),
    "problem": Line({"cause": _text, "done": _text}),
    "resumed": Line({"version": _text, "env_steps": _count, "written_at": _or_none(_finite)}),
    "writing": Line(),
    "score": Line(
        {"env_steps": _count, "wall": _finite, "return_mean": _number},
        {"return_std": _number, "episodes": _count, "best": _flag, "final": _flag, "version": _list(_count)},
    ),
    "ended": Line(
        {},
        {
            **dict.fromkeys(("env_steps", "env_steps_before", "updates", "updates_lost", "episodes"), _count),
            **dict.fromkeys(("env_steps_per_s", "updates_per_s", "wait_fraction", "store_wait_fraction"), _number),
            **dict.fromkeys(("train_return_mean_100", "solved_at_wall_s"), _or_none(_number)),
            "replay_ratio": _number,
            "checkpoint_interval_s": _finite,
            "solved_at_env_steps": _or_none(_count),
            "reason": _text,
            "weights_sha256": _text,
            "policy_lag": _map(_number),
            "notice": _or_none(_NOTICE),
            "ledger": _LEDGER,
        },
    ),
    "fault": _FAULT,
}
"""What a process of the run reports to its agent."""

AGENT_EVENTS: Mapping[str, Line] = {
    **{
        name: Line({**line.required, **_OF_PROCESS}, line.optional)
        for name, line in CHILD_EVENTS.items()
        if name != "notice"
    },
    "listening": Line({"ports": _ports, "addresses": _list(_text), "token": _or_none(_text)}, _OF_PROCESS),
    "refused": Line({"counts": _map(_count)}, _OF_PROCESS),
    "fault": Line({"error": _text}, {**_FAULT.optional, **_OF_PROCESS}),
    "started": Line({**_OF_PROCESS, "pid": _count, "start_time": _count}, {"spawn": _count}),
    "exit": Line(
        {**_OF_PROCESS, "code": _or_none(_whole), "expected": _flag, "cause": _text},
        {"detail": _map(lambda _: True), "log": _text, "log_tail": _list(_text), "pid": _count},
    ),
    "restart": Line({**_OF_PROCESS, "in_s": _finite}),
    "gave_up": Line({**_OF_PROCESS, "cause": _text}),
    "failed": Line({"cause": _text}),
    "usage": Line({"processes": _map(_USAGE)}, {"leases": _or_none(_count), "stored": _or_none(_count)}),
    "finished": Line(
        {"peak_pss_mb": _map(_finite)},
        {"ledger": _LEDGER, "ended": _count, "killed": _list(_text), "left": _list(_text), "final_stopped": _flag},
    ),
    "log": Line({"name": _text, "text": _text}),
    "warning": Line({"text": _text}),
    "lease_lost": Line({"source": _text}),
    "unreachable": Line({"cause": _text}),
    "joined": Line({"milliseconds": _finite, "store": _flag}, {"address": _text}),
}
"""What an agent reports to the launcher; events of a child bear its role and index."""

COMMANDS: Mapping[str, Line] = {
    "stop": Line(),
    "kill": Line(),
    "lease": Line(),
    "join": Line({"addresses": _list(_text), "ports": _ports}, {"token": _or_none(_text)}),
    "hold": Line({"workers": _list(_index)}),
    "gone": Line({"host": _text, "workers": _list(_index)}),
}
"""What the launcher sends to an agent."""

HANDSHAKE = Line(
    {"versions": _map(_or_none(_text)), "pid": _count, "time": _finite},
    {"start_time": _or_none(_count), "node": _text, "user": _text, "cores": _count},
)
"""What an agent sends first."""


def event_of(line: str | bytes, events: Mapping[str, Line]) -> tuple[str, dict[str, Any]]:
    """Name and fields of an event. WireError says what is wrong with the line."""
    return _parsed(line, "event", events)


def command_of(line: str | bytes) -> tuple[str, dict[str, Any]]:
    """Name and fields of a command. WireError says what is wrong with the line."""
    return _parsed(line, "command", COMMANDS)


def handshake_of(line: str) -> dict[str, Any]:
    """The fields of an agent's first line that are known. WireError says what is wrong with it."""
    data = _object(line)
    HANDSHAKE.check("handshake", data)
    return {name: data[name] for name in (*HANDSHAKE.required, *HANDSHAKE.optional) if name in data}


def _parsed(line: str | bytes, key: str, kinds: Mapping[str, Line]) -> tuple[str, dict[str, Any]]:
    data = _object(line)
    kind = data.pop(key, None)
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError(f"unknown {key}", f"{kind!r:.80}")
    kinds[kind].check(kind, data)
    return kind, data


def _object(line: str | bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON", str(error)) from error
    if not isinstance(data, dict):
        raise WireError("not JSON", "not an object")
    return data
