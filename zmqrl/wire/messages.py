"""Every message between processes, as a frozen dataclass. The codec checks each field against its annotation.

Runs of integers travel as packed little-endian int64 (`Packed`): the hot path packs nothing in a loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NewType

import numpy as np

from zmqrl.types import SlotRef

Packed = NewType("Packed", bytes)


def pack(rows: Iterable[Iterable[int]]) -> Packed:
    """Rows of integers as bytes."""
    return Packed(np.array([tuple(row) for row in rows], dtype="<i8").tobytes())


def unpack(packed: bytes, width: int) -> list[list[int]]:
    """The rows of `width` integers; ValueError when the bytes are no whole rows."""
    rows: list[list[int]] = np.frombuffer(packed, dtype="<i8").reshape(-1, width).tolist()
    return rows


def unpack_refs(packed: bytes) -> list[SlotRef]:
    """Rows of (slot, generation)."""
    return [SlotRef(slot, generation) for slot, generation in unpack(packed, 2)]


@dataclass(frozen=True)
class Hello:
    """Worker to broker, on control: who I am and what I have. Repeated until the orders are there."""

    worker: int
    spawn: int
    local: bool
    serial: int
    """Of the newest orders that it has; 0: none."""
    leases: Packed
    """(slot, generation)."""
    streams: Packed
    """(vector env, incarnation) that it steps."""


@dataclass(frozen=True)
class Heartbeat:
    """Any process to broker, on control, from a thread of its own: alive, and whether it gets on."""

    role: str
    index: int
    spawn: int
    progress: int


@dataclass(frozen=True)
class Sealed:
    """Worker on the broker's host, over PUSH: these slots are whole. Repeated while not acknowledged."""

    worker: int
    spawn: int
    refs: Packed


@dataclass(frozen=True)
class Segment:
    """Worker on another host, over PUSH: a segment; its columns follow as raw frames, in the plan's order."""

    worker: int
    spawn: int
    id: Packed
    version: Packed
    rows: int


@dataclass(frozen=True)
class Orders:
    """Broker to worker, on control: the vector envs that are its own. Sent when they change and when asked for."""

    broker: int
    serial: int
    streams: list[Any]
    """[vector env, incarnation, next index, states or null]; a state is [episode, resetting, dtype, shape, bytes]."""
    stop: bool


@dataclass(frozen=True)
class Reply:
    """Broker to worker, on control: absolute, so a lost one is mended by the next."""

    broker: int
    serial: int
    leases: Packed
    """All that it has: (slot, generation); on other hosts (credit, 0)."""
    acked: Packed
    """(vector env, incarnation, next index): everything below is booked."""


@dataclass(frozen=True)
class Descriptors:
    """Broker to learner, over PUSH: these slots are booked. A hint: the arena is the truth."""

    broker: int
    refs: Packed


@dataclass(frozen=True)
class TakeUpRequest:
    """Broker to learner, over PUSH: where does this vector env go on? Repeated until answered."""

    vector_env: int
    incarnation: int
    next_index: int


@dataclass(frozen=True)
class TakeUpAnswer:
    """Learner to broker, on control."""

    vector_env: int
    incarnation: int
    next_index: int
    states: list[Any]


@dataclass(frozen=True)
class Attach:
    """Learner to broker, on control: a learner is there; asks for everything that is waiting for it."""

    incarnation: int


@dataclass(frozen=True)
class Announce:
    """Learner to broker on control, broker to all over PUB and to agents on control: the version in the store."""

    version: Packed
    key: str
    nbytes: int
    sha256: str
    env_steps: int
    updates: int
    schedule: dict[str, Any]


@dataclass(frozen=True)
class Known:
    """Broker to learner, on control: the newest version that it has announced."""

    broker: int
    version: Packed


@dataclass(frozen=True)
class Report:
    """Learner to broker, on control: where it is, for the rate limiter. Absolute."""

    env_steps: int
    updates: int


@dataclass(frozen=True)
class Alive:
    """Host agent to broker, on control: its living workers (index, spawn), and those given up. Absolute."""

    host: str
    workers: Packed
    given_up: Packed


Message = (
    Hello
    | Heartbeat
    | Sealed
    | Segment
    | Orders
    | Reply
    | Descriptors
    | TakeUpRequest
    | TakeUpAnswer
    | Attach
    | Announce
    | Known
    | Report
    | Alive
)
