"""Heartbeats on control from a separate thread: they continue while the main thread computes, or hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq

from zmqrl.config.plan import Keys
from zmqrl.messages import bus, frames
from zmqrl.types import JudgedRole
from zmqrl.wire.sockets import connect, send

JOIN_S = 1.0


class HeartbeatThread:
    """One thread, which makes, uses and closes its socket."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        who: tuple[JudgedRole, int, int],
        progress: Callable[[], int],
        every_s: float,
        keys: Keys | None = None,
    ) -> None:
        """`who`: role, index, spawn. `progress` is called in the thread and must only read."""
        self._context, self._endpoint, self._who = context, endpoint, who
        self._progress, self._every_s, self._keys = progress, every_s, keys
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; its socket is closed then. Safe to call twice."""
        self._end.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        socket = connect(self._context, zmq.DEALER, self._endpoint, self._keys)
        role, index, spawn = self._who
        try:
            while True:
                send(socket, frames.pack(bus.Heartbeat(role, index, spawn, self._progress())))
                if self._end.wait(self._every_s):
                    return
        finally:
            socket.close()
