"""How fast this host encrypts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import zmq

from zmqrl.messages.doctor import Curve
from zmqrl.wire.sockets import bind_tcp, connect, make_keys, make_socket

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
    server = make_keys()
    puller = make_socket(context, zmq.PULL)
    port = bind_tcp(puller, "127.0.0.1", 0, server)
    keys = replace(make_keys(), server=server.public)
    pusher = connect(context, zmq.PUSH, f"tcp://127.0.0.1:{port}", keys)
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
