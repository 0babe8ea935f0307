"""How fast this host encrypts."""

from __future__ import annotations

import time
from typing import Any

import zmq

from zmqrl.config.plan import Keys
from zmqrl.messages.doctor import Curve
from zmqrl.wire.sockets import connect, make_socket

TEST_S = 0.2
MESSAGE_BYTES = 1 << 20
AHEAD = 8
"""Messages on their way: enough to keep both ends busy."""
SILENCE_MS = 1000
MB = 1e6


def measure_curve(test_s: float = TEST_S) -> Curve:
    """Send to ourselves over loopback for `test_s`, encrypted; one connection, as a worker's."""
    if not zmq.has("curve"):
        return Curve(False, None)
    context: zmq.Context[Any] = zmq.Context()
    try:
        return Curve(True, _mb_per_s(context, test_s))
    finally:
        context.destroy(linger=0)


def _mb_per_s(context: zmq.Context[Any], test_s: float) -> float | None:
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    puller = make_socket(context, zmq.PULL)
    puller.curve_server = True
    puller.curve_secretkey = server_secret.encode()
    port = puller.bind_to_random_port("tcp://127.0.0.1")
    pusher = connect(context, zmq.PUSH, f"tcp://127.0.0.1:{port}", Keys(server_public, public, secret))
    payload = bytes(MESSAGE_BYTES)
    for _ in range(AHEAD):
        pusher.send(payload, copy=False)
    if not puller.poll(SILENCE_MS):
        return None
    puller.recv(copy=False)
    begun, received = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < test_s:
        pusher.send(payload, copy=False)
        if not puller.poll(SILENCE_MS):
            return None
        puller.recv(copy=False)
        received += 1
    return received * MESSAGE_BYTES / MB / elapsed
