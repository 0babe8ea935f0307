"""Which of a host's addresses leads to the broker: probed in parallel, and only the right broker can answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.config.plan import Endpoints, Keys
from zmqrl.errors import DeadlineExceeded
from zmqrl.messages import bus, frames
from zmqrl.wire.sockets import connect, send

TCP_S = 2.0


@dataclass(frozen=True)
class Reached:
    """The address that answered first, and after how long."""

    address: str
    milliseconds: float


def first_answering(
    addresses: Sequence[str], ports: Sequence[int], host: str, keys: Keys | None, deadline_s: float
) -> Reached:
    """Probe for a broker at every address, on its control port.

    Raises:
        DeadlineExceeded: None answered; the message states what each did.
    """
    context: zmq.Context[Any] = zmq.Context()
    poller, asked, begun = zmq.Poller(), {}, time.monotonic()
    try:
        for address in addresses:
            control = connect(context, zmq.DEALER, Endpoints.tcp(address, ports).control, keys)
            send(control, frames.pack(bus.HostReport(host, {}, [], [], [])))
            poller.register(control, zmq.POLLIN)
            asked[control] = address
        for control, _ in poller.poll(int(deadline_s * 1000)):
            return Reached(asked[control], (time.monotonic() - begun) * 1000)
    finally:
        context.destroy(linger=0)
    tried = "; ".join(f"{address}: {_tcp(address, ports[-1])}" for address in addresses) or "no address"
    raise DeadlineExceeded(f"port {ports[-1]} of the learner's host does not answer within {deadline_s:g} s ({tried})")


def _tcp(address: str, port: int) -> str:
    """Result of a plain TCP connection, for the message."""
    try:
        socket.create_connection((address, port), TCP_S).close()
        return "connected, but not a broker of this run, or the key was rejected"
    except TimeoutError:
        return "no answer: filtered or not routed"
    except OSError as error:
        return error.strerror or str(error)
