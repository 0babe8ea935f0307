"""The host agent's link to the broker: notices in, who lives out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from zmqrl.config.codec import from_json
from zmqrl.config.plan import Endpoints
from zmqrl.errors import WireError
from zmqrl.types import Notice
from zmqrl.wire import messages
from zmqrl.wire.sockets import connect, drain, send


class AgentLink:
    """Owned by the agent's main thread."""

    def __init__(self, endpoints: Endpoints, host: str) -> None:
        self._host = host
        self._context: zmq.Context[Any] = zmq.Context()
        self._notices = connect(self._context, zmq.SUB, endpoints.notices)
        self._notices.setsockopt(zmq.SUBSCRIBE, b"")
        self._control = connect(self._context, zmq.DEALER, endpoints.control)

    @property
    def sockets(self) -> Sequence[zmq.Socket[Any]]:
        """To poll; readable means `notices`."""
        return (self._notices, self._control)

    def notices(self) -> list[Notice]:
        """What has arrived: the newest counts. PUB may lose, so every report is answered with the current one too."""
        found = []
        for frame in drain(self._notices) + drain(self._control):
            try:
                message = messages.unpack(frame)
            except WireError:
                continue
            if message.kind == "notice":
                found.append(from_json(Notice, message.fields["notice"]))
        return found

    def report(self, alive: Mapping[int, int], given_up: Sequence[int]) -> None:
        """Worker index to spawn, absolute: who is absent, or has another spawn, is dead and reaped."""
        send(self._control, messages.pack("agent", host=self._host, alive=dict(alive), given_up=list(given_up)))

    def close(self) -> None:
        """Safe to call twice."""
        self._context.destroy(linger=0)
