"""What decoding and checking a bus message costs, against unpacking and checking by hand, in one run.

usage: python benchmarks/decode.py     prints microseconds and ratios; exit code 1 when a ratio is above 0.5
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from zmqrl.messages import bus
from zmqrl.messages.frames import pack, unpack
from zmqrl.types import Notice, SlotRef, Version

NUMBER, REPEATS = 20_000, 9
MOST_RATIO = 0.5
Check = Callable[[Any], bool]
MESSAGES: tuple[bus.Message, ...] = (
    bus.WorkerReport(3, 1, 2, 7, False, [SlotRef(i, 5) for i in range(4)], [bus.StreamAt(3, 1)], [], [], 0, 0),
    bus.Heartbeat("worker", 3, 0, 12_345),
    bus.CurrentNotice(Notice(Version(0, 9), "v9.safetensors", 70_000, "0" * 64, 4096, 32, {"epsilon": 0.1})),
)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def is_counts(width: int) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, list) and len(row) == width and all(map(is_count, row)) for row in value
        )

    return check


def is_notice(value: Any) -> bool:
    names = ("nbytes", "env_steps", "updates")
    return (
        isinstance(value, dict)
        and value.keys() == {"version", "key", "sha256", "schedule", "before", *names}
        and is_counts(2)([value["version"]])
        and all(is_count(value[name]) for name in names)
        and isinstance(value["key"], str)
        and isinstance(value["sha256"], str)
        and all(isinstance(k, str) and isinstance(x, (int, float)) for k, x in value["schedule"].items())
        and (value["before"] is None or is_notice(value["before"]))
    )


SCHEMAS: Mapping[str, Mapping[str, Check]] = {
    "worker": {
        **dict.fromkeys(("index", "spawn", "broker", "segments", "busy_us"), is_count),
        "serial": lambda v: v == -1 or is_count(v),
        "remote": lambda v: isinstance(v, bool),
        "leases": is_counts(2),
        "streams": is_counts(2),
        "stopped": lambda v: isinstance(v, list) and all(map(is_count, v)),
        "open": is_counts(3),
    },
    "heartbeat": {
        "role": lambda v: isinstance(v, str) and len(v) < 256,
        **dict.fromkeys(("index", "spawn", "progress"), is_count),
    },
    "notice": {"notice": is_notice},
}
"""The validator that the types replaced, as far as these messages need it."""


def by_hand(frame: bytes) -> dict[str, Any]:
    _, kind, fields = msgpack.unpackb(frame, strict_map_key=False)
    schema = SCHEMAS[kind]
    if fields.keys() != schema.keys() or not all(check(fields[name]) for name, check in schema.items()):
        raise ValueError(kind)
    return dict(fields)


def microseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6


def main() -> int:
    worst = 0.0
    for message in MESSAGES:
        frame = pack(message)
        _, fields = msgpack.unpackb(frame)
        kind = fields.pop("kind")
        old = msgpack.packb([2, kind, fields])
        before, now = microseconds(lambda old=old: by_hand(old)), microseconds(lambda frame=frame: unpack(frame))
        worst = max(worst, now / before)
        print(f"{kind}: {now:.2f} us, by hand {before:.2f} us, ratio {now / before:.2f}")
    return int(worst > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
