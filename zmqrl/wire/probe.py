"""Which of a host's addresses leads to the broker: probed in parallel, and only the right broker can answer."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

import zmq

from zmqrl.config.plan import Endpoints, Keys
from zmqrl.errors import ConfigError, DeadlineExceeded, WireError
from zmqrl.messages import bus, frames
from zmqrl.messages.command import Join
from zmqrl.wire.sockets import connect, send

TCP_S = 2.0
FULL_PACKETS = f"does not return a message of {bus.ECHO_BYTES >> 10} KiB"
MTU_FIX = "full packets are lost on the way: lower the MTU on both hosts (sudo ip link set dev IFACE mtu 1400)"
NO_BROKER = "connected, but not a broker of this run, or the key was rejected"
ENROL_S = 0.3
"""Between two requests of a host that shows its token."""


@dataclass(frozen=True)
class FirstAddress:
    """The address that answered first, and after how long."""

    address: str
    milliseconds: float


class Unanswered(DeadlineExceeded):
    """No broker of the run has answered."""

    def __init__(self, sentence: str, accepts: bool) -> None:
        """`accepts`: an address accepts connections on that port: it may be a broker without a free core."""
        super().__init__(sentence)
        self.accepts = accepts


def first_answering(join: Join, host: str, keys: Keys | None, deadline_s: float) -> FirstAddress:
    """Probe for a broker at every address, on its control port; a host with a token enrols its key there.

    The broker then has to return a message of several full packets, as segments and weights are.

    Raises:
        Unanswered: None answered; the message states what each did.
        DeadlineExceeded: One answered, but did not return the long message.
        ConfigError: The broker refuses the token.
    """
    context: zmq.Context[Any] = zmq.Context()
    poller, requested, begun = zmq.Poller(), {}, time.monotonic()
    answered: dict[str, float] = {}
    until = begun + deadline_s
    report = bus.HostReport(host, {}, [], [], [], "")
    request = frames.pack(report if join.enrolment is None else bus.Enrol(join.enrolment))
    try:
        for address in join.addresses:
            control = connect(context, zmq.DEALER, Endpoints.tcp(address, join.ports).control, keys)
            send(control, request)
            poller.register(control, zmq.POLLIN)
            requested[control] = address
        while requested and (left_s := until - time.monotonic()) > 0:  # a poll of no socket returns at once
            for control, _ in poller.poll(int(1000 * (left_s if join.enrolment is None else min(left_s, ENROL_S)))):
                address = requested[control]
                if _is_echo(control.recv_multipart()[0]):
                    return FirstAddress(address, answered[address])
                if address not in answered:
                    answered[address] = (time.monotonic() - begun) * 1000
                    send(control, frames.pack(bus.PathProbe(bytes(bus.ECHO_BYTES))))
            for control in requested if join.enrolment is not None and not answered else ():
                send(control, request)  # the broker answers once the launcher has put the key on the list
    finally:
        context.destroy(linger=0)
    raise _failure(join, list(answered), deadline_s)


def _failure(join: Join, answered: list[str], deadline_s: float) -> DeadlineExceeded:
    """The error of a probe, with what each address did."""
    if answered:
        at = ", ".join(answered)
        return DeadlineExceeded(f"the learner's host answers at {at}, and {FULL_PACKETS} within {deadline_s:g} s")
    port = join.ports[-1]
    tried = {address: plain_connection(address, port, NO_BROKER) for address in join.addresses}
    causes = "; ".join(f"{address}: {result}" for address, result in tried.items())
    sentence = f"port {port} of the learner's host does not answer within {deadline_s:g} s ({causes or 'no address'})"
    return Unanswered(sentence, accepts=NO_BROKER in tried.values())


def _is_echo(frame: bytes) -> bool:
    """Whether it is the long answer. ConfigError when the host is not admitted."""
    try:
        message = frames.unpack(frame)
    except WireError:
        return False  # it has our key, and the agent's link counts what it does not understand
    if isinstance(message, bus.ShutdownNotice):
        raise ConfigError(f"the run does not admit this host: {message.cause}")
    return isinstance(message, bus.PathProbe)


def plain_connection(address: str, port: int, connected: str) -> str:
    """Result of a plain TCP connection to a port that does not answer: why there is none, else `connected`."""
    try:
        socket.create_connection((address, port), TCP_S).close()
        return connected
    except TimeoutError:
        return "no answer: filtered or not routed"
    except OSError as error:
        return error.strerror or str(error)
