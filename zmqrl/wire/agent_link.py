"""The host agent's link to the broker: notices and weights in, who lives out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.config.plan import Endpoints, Keys
from zmqrl.errors import WireError
from zmqrl.messages import bus, frames
from zmqrl.types import AllowList, Notice, Version
from zmqrl.wire.sockets import connect, drain_multipart, send


@dataclass(frozen=True)
class Fetched:
    """Weights that came over control. Not verified yet."""

    notice: Notice
    content: bytes


class AgentLink:
    """Owned by the agent's main thread."""

    def __init__(self, endpoints: Endpoints, keys: Keys | None = None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._notices = connect(self._context, zmq.SUB, endpoints.notices, keys)
        self._notices.setsockopt(zmq.SUBSCRIBE, b"")
        self._control = connect(self._context, zmq.DEALER, endpoints.control, keys)
        self.fetched: list[Fetched] = []
        """What came alongside notices; the reader takes it away."""
        self.refused: Counter[str] = Counter()
        """Messages that are none of a broker's, by reason."""
        self.shutdown_cause: str | None = None
        """Why this host's part of the run is over, once it is."""
        self.hanging: Sequence[bus.Hanging] = ()
        """Processes of this host that are to be killed, as of the last answer."""
        self._welcomed_by: int | None = None
        self.broker: int | None = None
        """Incarnation of the broker that answered last and knows of a version."""
        self.received = 0
        """Messages so far: it grows while the broker lives."""

    @property
    def sockets(self) -> Sequence[zmq.Socket[Any]]:
        """To poll; readable means `notices`."""
        return (self._notices, self._control)

    def notices(self) -> list[Notice]:
        """What has arrived: the newest counts. PUB may lose, so every report is answered with the current one too."""
        found = []
        for parts in drain_multipart(self._notices) + drain_multipart(self._control):
            try:
                message = frames.unpack(parts[0])
            except WireError as error:
                self.refused[error.reason] += 1
                continue
            self.received += 1
            match message:
                case bus.Welcome():
                    self._welcomed_by, self.hanging = message.broker, message.hanging
                case bus.CurrentNotice():
                    self.broker = self._welcomed_by
                    found.append(message.notice)
                case bus.Weights() if len(parts) == 1 + message.parts:
                    self.fetched.append(Fetched(message.notice, b"".join(parts[1:])))
                case bus.ShutdownNotice():
                    self.shutdown_cause = message.cause
                case _:
                    self.refused["frames" if isinstance(message, bus.Weights) else "kind"] += 1
        return found

    def report(self, report: bus.HostReport) -> None:
        """Send the report of this host, or of one without a connection: that only counts from the broker's host."""
        send(self._control, frames.pack(report))

    def allow(self, allowed: AllowList) -> None:
        """Who may participate from other hosts: of the learner's host alone."""
        send(self._control, frames.pack(bus.AllowedKeys(allowed)))

    def fetch(self, version: Version) -> None:
        """Request `version` or a newer one; it will be in `fetched`."""
        send(self._control, frames.pack(bus.Fetch(version)))

    def close(self) -> None:
        """Safe to call twice."""
        self._context.destroy(linger=0)
