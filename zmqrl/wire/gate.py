"""Who may come in over tcp: CURVE on the broker's sockets, the ZAP answer, and a count of everyone refused.

The user id of a connection is its public key. Whose key that is, and whether it still counts, is looked up for each
message. Endpoints of this host (ipc, in a private folder) are bound before `open_tcp` and stay without encryption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils import z85

from zmqrl.config.plan import Keys, TcpListen
from zmqrl.errors import ConfigError
from zmqrl.wire.admission import NO_HANDSHAKE, UNKNOWN_KEY, Admission
from zmqrl.wire.sockets import bind_tcp

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
LOOPBACK = "127.0.0.1"
UNNAMED = ""
"""The host of a message that came over tcp without a key (`security.curve: off`)."""
IPC_ADDRESS = "localhost:"
"""Begins the address of an ipc peer (then uid, gid, pid); that of a tcp peer is an IP address."""
ZAP_FRAMES = 7
"""version, request, domain, address, identity, mechanism, key."""
DOMAIN, ENROLMENT = b"zmqrl", b"zmqrl-enrolment"
"""ZAP domains: of sockets for known keys only, and of the socket that also takes enrolments."""
NOT_NOW = b"300"
"""ZAP status (RFC 27): the peer tries again after its handshake timeout. After 400 it would never connect again."""
REFUSALS: Mapping[int, str] = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): NO_HANDSHAKE,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "wrong handshake",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): UNKNOWN_KEY,
}
MOST_EVENTS = 1000


class Gate:
    """Made before anything is bound; owned by the thread that polls its `sockets`."""

    def __init__(self, context: zmq.Context[Any], keys: Keys | None, admission: Admission) -> None:
        """Without `keys` nothing but ipc and loopback can be bound, and only failed handshakes are counted."""
        self._keys, self._admission = keys, admission
        self._zap: zmq.Socket[Any] | None = None
        if keys is not None:
            self._zap = context.socket(zmq.REP)
            self._zap.bind(ZAP_ENDPOINT)
        self._monitors: list[zmq.Socket[Any]] = []
        self.refused: Counter[str] = Counter()

    @property
    def sockets(self) -> Sequence[zmq.Socket[Any]]:
        """To poll; readable means `serve`."""
        return [*self._monitors, *([] if self._zap is None else [self._zap])]

    def watch(self, socket: zmq.Socket[Any]) -> None:
        """Count the handshakes that fail on `socket`."""
        self._monitors.append(socket.get_monitor_socket(sum(REFUSALS)))

    def open_tcp(self, socket: zmq.Socket[Any], listen: TcpListen, port: int, enrolment: bool = False) -> int:
        """Bind `socket`, which is bound to ipc already, to tcp, encrypted; returns the port, for 0 any free one.

        `enrolment`: hosts whose keys are not known yet may connect too, while the run has tokens for such hosts.

        Raises:
            ConfigError: Other hosts could connect without a key.
            zmq.ZMQError: The port is taken.
        """
        if self._keys is not None:
            socket.zap_domain = ENROLMENT if enrolment else DOMAIN
        elif listen.address != LOOPBACK:
            raise ConfigError(
                "without keys any peer could connect",
                value=f"tcp://{listen.address}:{port or '*'}",
                fix=f"start the run with zmqrl launch, whose host agents have keys, or listen on {LOOPBACK} only",
            )
        return bind_tcp(socket, listen.address, port, self._keys)

    def key_of(self, frame: zmq.Frame) -> str | None:
        """The public key of the connection that a message came from; None without encryption."""
        return _property(frame, "User-Id") or None

    def host_of(self, frame: zmq.Frame) -> str | None:
        """The host that a message came from.

        Returns:
            None for the broker's own host (ipc). `UNNAMED` for a sender over tcp without encryption.

        Raises:
            WireError: The key of the connection is not on the allow-list, or no longer.
        """
        if _property(frame, "Peer-Address").startswith(IPC_ADDRESS):
            return None
        return UNNAMED if self._keys is None else self._admission.host_of(_property(frame, "User-Id"))

    def serve(self) -> None:
        """Answer authentication requests, count rejections; never blocks."""
        if self._zap is not None:
            for _ in range(MOST_EVENTS):
                try:
                    request = self._zap.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._zap.send_multipart(self._judged(request))
        for monitor in self._monitors:
            self._count(monitor)

    def _judged(self, request: Sequence[bytes]) -> list[bytes]:
        """A ZAP reply (RFC 27): 200 and the public key as user id, or that it is unknown."""
        verdict = [NOT_NOW, UNKNOWN_KEY.encode(), b"", b""]
        if len(request) == ZAP_FRAMES and request[5] == b"CURVE":
            public = z85.encode(request[6])
            if self._admission.may_connect(public.decode(), to_enrol=request[2] == ENROLMENT):
                verdict = [b"200", b"", public, b""]
        return [*request[:2], *verdict]

    def _count(self, monitor: zmq.Socket[Any]) -> None:
        for _ in range(MOST_EVENTS):
            if not monitor.poll(0):
                return
            from zmq.utils.monitor import recv_monitor_message  # with asyncio: a broker starts faster without it

            monitored = recv_monitor_message(monitor)
            self.refused[REFUSALS[int(monitored["event"])]] += 1

    def close(self) -> None:
        """Close what the context does not know of."""
        for socket in self.sockets:
            socket.close(0)


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return UNNAMED
