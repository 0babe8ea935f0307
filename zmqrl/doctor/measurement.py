"""All that was measured of one host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zmqrl.messages.doctor import Curve, EnvFacts, Folders, Listening, Locks, Machine, Reached
from zmqrl.messages.orchestrator import Handshake


@dataclass(frozen=True)
class Hello:
    """Who and what a host is, from a handshake."""

    node: str
    user: str
    python: str
    """The interpreter's path."""
    versions: Mapping[str, str | None]

    @classmethod
    def of(cls, handshake: Handshake) -> Hello:
        """What the doctor shows of `handshake`."""
        return cls(handshake.node, handshake.user, handshake.python, handshake.versions)


@dataclass(frozen=True)
class Failure:
    """Why a host could not be examined."""

    check: str
    """ssh, prologue, wrap, python, zmqrl, packages, probe or answer."""
    cause: str
    fix: str = ""
    """Empty: what fixes this kind."""


@dataclass(frozen=True)
class ClockFacts:
    """This host's clock alongside the launcher's."""

    skew_s: float
    """Positive: it is ahead."""
    round_trip_s: float
    """Least of several; the skew is known to half of it."""


@dataclass(frozen=True)
class StoreFacts:
    """Whether a worker's host sees what the learner's host wrote."""

    seen: bool
    visible_s: float | None
    """Seconds from the rename on the learner's host to the listing here, clocks corrected."""
    cause: str | None


@dataclass(frozen=True)
class Measurement:
    """None: not measured."""

    host: str
    hello: Hello | None = None
    clock: ClockFacts | None = None
    machine: Machine | None = None
    locks: Locks | None = None
    folders: Folders | None = None
    curve: Curve | None = None
    listening: Listening | None = None
    reached: Reached | None = None
    store: StoreFacts | None = None
    env: EnvFacts | None = None
    failure: Failure | None = None

    @property
    def waited_for(self) -> str:
        """What comes next: named when a host does not answer in time."""
        stages = (
            ("the handshake", self.hello),
            ("the time", self.clock),
            ("processors and memory", self.machine),
            ("lock files", self.locks),
            ("directories", self.folders),
            ("CURVE", self.curve),
        )
        return next((what for what, known in stages if known is None), "ports, store and env")
