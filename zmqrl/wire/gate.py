"""Who may come in over tcp: CURVE on the broker's sockets, the ZAP answer, and a count of everyone refused.

Endpoints of this host (ipc, in a private folder) are bound before `guard` and stay without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils import z85

from zmqrl.config.plan import Keys, Listen
from zmqrl.errors import ConfigError

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
LOOPBACK = "127.0.0.1"
UNNAMED = ""
"""The user of a message that came over tcp without a key."""
IPC_ADDRESS = "localhost:"
"""Begins the address of an ipc peer (then uid, gid, pid); that of a tcp peer is an IP address."""
ZAP_FRAMES = 7
"""version, request, domain, address, identity, mechanism, key."""
DOMAIN = b"zmqrl"
REFUSALS: Mapping[int, str] = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "no handshake",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "wrong handshake",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "unknown key",
}
MOST_EVENTS = 1000


class Gate:
    """Made before anything is bound; owned by the thread that polls its `sockets`."""

    def __init__(self, context: zmq.Context[Any], keys: Keys | None) -> None:
        """Without `keys` nothing but ipc and loopback can be bound, and only failed handshakes are counted."""
        self._keys = keys
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

    def open_tcp(self, socket: zmq.Socket[Any], listen: Listen, port: int) -> int:
        """Bind `socket` to tcp, encrypted; returns the port.

        ConfigError when other hosts could connect and no keys are set; zmq.ZMQError when the port is taken.
        """
        if self._keys is not None:
            socket.curve_server = True
            socket.curve_secretkey = self._keys.server_secret.encode()
            socket.zap_domain = DOMAIN
        elif listen.address != LOOPBACK:
            raise ConfigError(
                f"cannot listen on tcp://{listen.address}:{port or '*'}: no keys: any peer could connect; "
                f"start the run with zmqrl launch, which creates a key for each host, or listen on {LOOPBACK} only"
            )
        socket.bind(f"tcp://{listen.address}:{port or '*'}")
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes), "libzmq returns bytes"
        return int(bound.rstrip(b"\0").rpartition(b":")[2])

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
        """A ZAP reply (RFC 27): 200 and the host's name as user id, or 400."""
        host = None
        if len(request) == ZAP_FRAMES and request[5] == b"CURVE" and self._keys is not None:
            host = self._keys.allowed.get(z85.encode(request[6]).decode())
        verdict = [b"400", b"unknown key", b"", b""] if host is None else [b"200", b"", host.encode(), b""]
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


def user_of(frame: zmq.Frame) -> str | None:
    """The host that a message came from, as the gate knows it.

    None for the broker's own host (ipc). `UNNAMED` for a sender over tcp without a key (`security.curve: off`).
    """
    if _property(frame, "Peer-Address").startswith(IPC_ADDRESS):
        return None
    return _property(frame, "User-Id")


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return UNNAMED
