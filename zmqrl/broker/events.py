"""What the broker's state is told, and what it wants done: plain data, no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zmqrl.broker.orders import StreamOrder, TakeUp, TakeUpRequest
from zmqrl.types import Notice, SlotRef


@dataclass(frozen=True)
class WorkerIs:
    """A worker's absolute word of itself, at its start and at each heartbeat."""

    index: int
    spawn: int
    leases: Sequence[SlotRef]
    streams: Mapping[int, int]
    """Vector env to incarnation of what it steps now."""


@dataclass(frozen=True)
class Goodbye:
    """A worker ends by itself and writes no more."""

    index: int
    spawn: int


@dataclass(frozen=True)
class Sealed:
    """Descriptors: hints that these slots are sealed."""

    index: int
    spawn: int
    refs: Sequence[SlotRef]


@dataclass(frozen=True)
class HostIs:
    """A host agent's absolute word: who is not listed is dead and reaped."""

    alive: Mapping[int, int]
    given_up: Sequence[int]


@dataclass(frozen=True)
class LearnerIs:
    """The learner's report; it also may have released slots."""

    updates: int


@dataclass(frozen=True)
class Announced:
    """The learner's current version."""

    notice: Notice


@dataclass(frozen=True)
class Answered:
    """The learner's answer to a take-up request."""

    take_up: TakeUp


Event = WorkerIs | Goodbye | Sealed | HostIs | LearnerIs | Announced | Answered


@dataclass(frozen=True)
class Forward:
    """Booked: tell the learner."""

    refs: Sequence[SlotRef]


@dataclass(frozen=True)
class Reply:
    """Tell the worker where it stands (`BrokerState.standing`)."""

    index: int


@dataclass(frozen=True)
class Ask:
    """Ask the learner where successors start (`BrokerState.requests`)."""


@dataclass(frozen=True)
class Publish:
    """A new version for everybody."""

    notice: Notice


@dataclass(frozen=True)
class Fail:
    """The run cannot go on."""

    cause: str


Action = Forward | Reply | Ask | Publish | Fail


@dataclass(frozen=True)
class Standing:
    """A worker's place, absolute: what a control reply carries."""

    spawn: int
    leases: Sequence[SlotRef]
    acked: Mapping[int, tuple[int, int]]
    """Vector env to (incarnation, next index): what is below is booked."""
    orders: Sequence[StreamOrder]


__all__ = ["Action", "Event", "Standing", "TakeUpRequest"]
