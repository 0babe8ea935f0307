"""The host agent's link to the broker: notices and weights in, who lives out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.config.codec import from_json
from zmqrl.config.plan import Endpoints, Keys
from zmqrl.errors import WireError
from zmqrl.types import Notice, Version
from zmqrl.wire import messages
from zmqrl.wire.messages import HostWord
from zmqrl.wire.sockets import connect, drain_multipart, send


@dataclass(frozen=True)
class Fetched:
    """Weights that came over control. Not verified yet."""

    notice: Notice
    content: bytes


class AgentLink:
    """Owned by the agent's main thread."""

    def __init__(self, endpoints: Endpoints, host: str, keys: Keys | None = None) -> None:
        self._host = host
        self._context: zmq.Context[Any] = zmq.Context()
        self._notices = connect(self._context, zmq.SUB, endpoints.notices, keys)
        self._notices.setsockopt(zmq.SUBSCRIBE, b"")
        self._control = connect(self._context, zmq.DEALER, endpoints.control, keys)
        self.fetched: list[Fetched] = []
        """What came beside notices; the reader takes it away."""
        self.refused: Counter[str] = Counter()
        """Messages that are none of a broker's, by reason."""
        self.farewell = False
        """The run is over."""
        self._welcomed_by: int | None = None
        self.broker: int | None = None
        """Incarnation of the broker that answered last and knows of a version."""
        self.heard = 0
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
                message = messages.unpack(parts[0])
            except WireError as error:
                self.refused[error.reason] += 1
                continue
            self.heard += 1
            self.farewell = self.farewell or message.kind == "farewell"
            if message.kind == "welcome":
                self._welcomed_by = message.fields["broker"]
            elif message.kind == "notice":
                self.broker = self._welcomed_by
                found.append(from_json(Notice, message.fields["notice"]))
            elif message.kind == "weights" and len(parts) == 1 + message.fields["parts"]:
                notice = from_json(Notice, message.fields["notice"])
                self.fetched.append(Fetched(notice, b"".join(parts[1:])))
            elif message.kind != "farewell":
                self.refused["frames" if message.kind == "weights" else "kind"] += 1
        return found

    def report(self, word: HostWord) -> None:
        """Of this host."""
        self.speak_for(self._host, word)

    def speak_for(self, host: str, word: HostWord) -> None:
        """In the name of a host that cannot; the broker believes only its own host's agent."""
        send(self._control, messages.pack_host_word(host, word))

    def fetch(self, version: Version) -> None:
        """Ask for `version` or a newer one; it will be in `fetched`."""
        send(self._control, messages.pack("fetch", version=list(version)))

    def close(self) -> None:
        """Safe to call twice."""
        self._context.destroy(linger=0)
