"""The bus: workers PUSH their segments to the broker's socket, encrypted with CURVE, which authenticates the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

from zmqrl.config.plan import RunPlan
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.wire.sockets import drain_frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

COPY_BELOW = 65_536
"""Bytes: a smaller frame is copied faster than it is shared with the I/O thread."""
MOST_MESSAGES = 1000
"""Most messages of one call of `receive`."""


class ZmqBackend(MemoryBackend):
    """The default. Its sockets belong to the bus: a worker's PUSH, and the broker's PULL with the ipc endpoint."""

    def __init__(self, config: Any, plan: RunPlan) -> None:
        super().__init__(config, plan)
        self._socket: zmq.Socket[Any]

    def use(self, socket: zmq.Socket[Any]) -> None:
        """Send to `socket`, or receive from it; before anything else. Its maker closes it."""
        self._socket = socket
        self._socket.copy_threshold = COPY_BELOW

    def send(self, frames: Sequence[Buffer]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float) -> list[list[Any]]:
        """Messages as `zmq.Frame`s, which know their sender."""
        if timeout_s > 0:
            self._socket.poll(int(timeout_s * 1000))
        return drain_frames(self._socket, MOST_MESSAGES)
