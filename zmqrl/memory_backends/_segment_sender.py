"""A remote worker's segments on their way out: over the bus, or sealed over another carrier that may be away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.errors import TransportError
from zmqrl.logs.events import EventPipe
from zmqrl.messages import agent
from zmqrl.segment_transports.base import SegmentTransport
from zmqrl.segment_transports.make import BUS, make_transport
from zmqrl.segment_transports.seal import Sealing
from zmqrl.segment_transports.zmq import ZmqTransport
from zmqrl.wire.sockets import connect

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SealedSender:
    """Seals each message. While the carrier is away nothing is sent, and the launcher is notified once."""

    def __init__(self, boot: Boot, carrier: SegmentTransport) -> None:
        self._carrier, self._events = carrier, EventPipe(boot.fds.get("events"))
        self._sealing = Sealing(boot.plan.run_id, boot.keys)
        self._is_away = False

    def send(self, frames: Sequence[Buffer]) -> bool:
        """As `SegmentTransport.send`; False while the carrier is away."""
        try:
            taken = self._carrier.send(self._sealing.seal(frames))
        except TransportError as error:
            self._set_away(True, str(error))
            return False
        if taken:
            self._set_away(False, "the segment transport accepts segments again")
        return taken

    def close(self) -> None:
        """Release the carrier's connection."""
        self._carrier.close()

    def _set_away(self, is_away: bool, cause: str) -> None:
        if is_away != self._is_away:
            done = "segments are kept and sent again" if is_away else "segments that were kept are sent"
            self._events.send(agent.ProblemReport(cause, done))
        self._is_away = is_away


def make_sender(boot: Boot, context: zmq.Context[Any]) -> SegmentTransport | SealedSender:
    """What a worker without an arena sends its segments to."""
    if boot.plan.config.segment_transport.kind != BUS:
        return SealedSender(boot, make_transport(boot.plan))
    transport = ZmqTransport(NO_KEYS, boot.plan)
    transport.use(connect(context, zmq.PUSH, boot.endpoints.segments, boot.keys))
    return transport
