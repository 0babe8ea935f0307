"""Segments of another memory backend than the bus: a thread receives them, the broker's loop polls for them."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from zmqrl.errors import TransportError
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.wire.sockets import drain_frames, make_socket

ENDPOINT = "inproc://segments-of-backend"
RECEIVE_S = 0.5
RETRY_S = 0.5
JOIN_S = 5.0
MOST_WAITING = 64
"""Segments that were received and wait for the broker, at each of the two ends; the rest wait at the carrier."""
ROOM_S = 0.1
"""How often the thread looks whether it is to end while the queue is full."""


class SegmentReceiver:
    """Made, used and closed by the broker's main thread; the backend is used by the thread of this class alone."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = make_socket(self._context, zmq.PULL, MOST_WAITING)
        """To poll; readable means `receive`."""
        self.socket.bind(ENDPOINT)
        self._backend = backend
        self.away: str | None = None
        """Why nothing can be received now."""
        self._error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-backend", daemon=True)
        self._thread.start()

    def receive(self, most: int) -> list[list[zmq.Frame]]:
        """Messages that have arrived. Raises what ended the thread."""
        if self._error is not None:
            raise self._error
        return drain_frames(self.socket, most)

    def close(self) -> None:
        """End the thread, which closes the backend; waits for `JOIN_S` at most."""
        self._end.set()
        self._thread.join(JOIN_S)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        socket = make_socket(self._context, zmq.PUSH, MOST_WAITING)
        socket.connect(ENDPOINT)
        try:
            while not self._end.is_set():
                self._move(socket)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: raised by the next `receive`
            self._error = error
        finally:
            socket.close()
            self._backend.close()

    def _move(self, socket: zmq.Socket[Any]) -> None:
        try:
            messages = self._backend.receive(RECEIVE_S)
        except TransportError as error:
            self.away = str(error)
            self._end.wait(RETRY_S)
            return
        self.away = None
        for frames in messages:
            if frames and self._has_room(socket):
                socket.send_multipart(list(frames), copy=False)

    def _has_room(self, socket: zmq.Socket[Any]) -> bool:
        """Waits until there is; False when the thread is to end: workers send again what was not acknowledged."""
        while not self._end.is_set():
            if socket.poll(int(ROOM_S * 1000), zmq.POLLOUT):
                return True
        return False
