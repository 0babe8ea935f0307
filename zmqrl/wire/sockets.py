"""Sockets with the options of zmqrl. ZMTP heartbeats stay off: they disconnect and lose messages."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import zmq

from zmqrl.config.plan import Keys

HIGH_WATER_MARK = 100_000
"""Above every number of leases: leases are the flow control, never this."""
DRAIN_MOST = 1000
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
ALL_ADDRESSES = "*"
MAX_MESSAGE_BYTES = 64 << 20
RECONNECT_MS = 20
RECONNECT_MAX_MS = 500
RECONNECT_MAX_IPC_MS = 50
"""On this host an attempt costs next to nothing, and a broker that is started again is away for about half a second."""
HANDSHAKE_MS = 5000
CONNECT_MS = 3000
UNACKNOWLEDGED_MS = 10_000
"""A cut connection is closed after this time and opened again, instead of after minutes of backoff."""
KEEPALIVE_S = 10
"""TCP's own: a peer whose machine is gone is found, also where nothing is sent. A stalled process is not touched."""


def make_socket(context: zmq.Context[Any], kind: int, most: int = HIGH_WATER_MARK) -> zmq.Socket[Any]:
    """A socket that drops what is unsent when it is closed: what matters is sent again by the protocol.

    `most`: messages that wait in it.
    """
    socket: zmq.Socket[Any] = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, most),
        (zmq.RCVHWM, most),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
        (zmq.IPV6, 0),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.TCP_MAXRT, UNACKNOWLEDGED_MS),
        (zmq.CONNECT_TIMEOUT, CONNECT_MS),
    ):
        socket.setsockopt(option, value)
    return socket


def make_keys() -> Keys:
    """A new CURVE pair, for this host in this run."""
    public, secret = zmq.curve_keypair()
    return Keys(public.decode(), secret.decode())


def connect(context: zmq.Context[Any], kind: int, endpoint: str, keys: Keys | None = None) -> zmq.Socket[Any]:
    """A connecting end; with `keys` it is encrypted, and only that server is spoken to."""
    socket = make_socket(context, kind)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    if endpoint.startswith("ipc:"):
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_IPC_MS)
    if keys is not None and endpoint.startswith("tcp:"):
        socket.curve_serverkey = keys.server.encode()
        socket.curve_publickey = keys.public.encode()
        socket.curve_secretkey = keys.secret.encode()
    socket.connect(endpoint)
    return socket


def bind(context: zmq.Context[Any], kind: int, endpoint: str) -> zmq.Socket[Any]:
    """A binding end of this host."""
    socket = make_socket(context, kind)
    socket.bind(endpoint)
    return socket


def bind_tcp(socket: zmq.Socket[Any], address: str, port: int, keys: Keys | None) -> int:
    """Bind `socket` to tcp as well, encrypted with `keys`; port 0 is any free one. Returns the port."""
    if keys is not None:
        socket.curve_server = True
        socket.curve_secretkey = keys.secret.encode()
    if address == ALL_ADDRESSES and any(":" in own for own in own_addresses()):
        socket.setsockopt(
            zmq.IPV6, 1
        )  # both families; without an IPv6 address IPv4 alone, also where the kernel has none
    socket.bind(f"tcp://{address}:{port or '*'}")
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes), "libzmq returns bytes"
    return int(bound.rstrip(b"\0").rpartition(b":")[2])


def drain(socket: zmq.Socket[Any], most: int = DRAIN_MOST) -> list[bytes]:
    """Single-frame messages that are there, `most` at a time; a message of more frames becomes an empty one."""
    return [parts[0] if len(parts) == 1 else b"" for parts in drain_multipart(socket, most)]


def drain_multipart(socket: zmq.Socket[Any], most: int = DRAIN_MOST) -> list[list[bytes]]:
    """Messages that are there, whole; no more than `most`, so that a flood does not stop everything else."""
    messages: list[list[bytes]] = []
    try:
        while len(messages) < most and _is_readable(socket):
            messages.append(socket.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        pass
    return messages


def drain_frames(socket: zmq.Socket[Any], most: int) -> list[list[zmq.Frame]]:
    """The same without copying: for messages with large frames."""
    messages: list[list[zmq.Frame]] = []
    try:
        while len(messages) < most and _is_readable(socket):
            messages.append(socket.recv_multipart(zmq.NOBLOCK, copy=False))
    except zmq.Again:
        pass
    return messages


def _is_readable(socket: zmq.Socket[Any]) -> bool:
    """Whether a message is there. Mostly there is none, and `zmq.Again` costs more than twice as much.

    A receive may raise `zmq.Again` all the same, where a connection was cut between the two.
    """
    return bool(int(socket.get(_EVENTS)) & _POLLIN)


def send(socket: zmq.Socket[Any], frame: bytes) -> bool:
    """Send without blocking; False without a peer or when the queue is full: the caller repeats what matters."""
    try:
        socket.send(frame, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def own_addresses() -> list[str]:
    """IPv4 addresses of interfaces that are up, then their IPv6 ones; without loopback and addresses of one link."""
    import psutil  # only the learner's host of a run with others needs it

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        address.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == family
    ]
    return [address for address in found if not _is_of_one_link(address)]


def port_holder(port: int) -> str:
    """Which process has a TCP port, as far as this user may see it: ` by pid 7 (redis) of anna`, or nothing."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid is not None:
                process = psutil.Process(connection.pid)
                return f" by pid {process.pid} ({process.name()}) of {process.username()}"
    except psutil.Error:
        return ""
    return ""


def _is_of_one_link(address: str) -> bool:
    """A loopback address, or one of IPv6 that names its interface."""
    ip = ip_address(address)
    return ip.is_loopback or (ip.version == 6 and ip.is_link_local)
