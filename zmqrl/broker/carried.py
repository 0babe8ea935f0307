"""Segments that another carrier than the bus brings: a thread receives them, the broker's loop polls for them."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from zmqrl.errors import TransportError
from zmqrl.segment_transports.base import SegmentTransport
from zmqrl.wire.sockets import bind, connect, drain_frames

ENDPOINT = "inproc://carried"
RECEIVE_S = 0.5
RETRY_S = 0.5
JOIN_S = 5.0


class Carried:
    """Made, used and closed by the broker's main thread; the transport is used by the thread of this class alone."""

    def __init__(self, transport: SegmentTransport) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = bind(self._context, zmq.PULL, ENDPOINT)
        """To poll; readable means `receive`."""
        self._transport = transport
        self.away: str | None = None
        """Why nothing can be received now."""
        self._error: Exception | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="segment-transport", daemon=True)
        self._thread.start()

    def receive(self, most: int) -> list[list[zmq.Frame]]:
        """Messages that have arrived. Raises what ended the thread."""
        if self._error is not None:
            raise self._error
        return drain_frames(self.socket, most)

    def close(self) -> None:
        """End the thread, which closes the transport; waits for `JOIN_S` at most."""
        self._end.set()
        self._thread.join(JOIN_S)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        socket = connect(self._context, zmq.PUSH, ENDPOINT)
        try:
            while not self._end.is_set():
                self._move(socket)
        except Exception as error:  # noqa: BLE001 - the top of a thread: raised by the next `receive`
            self._error = error
        finally:
            socket.close()
            self._transport.close()

    def _move(self, socket: zmq.Socket[Any]) -> None:
        try:
            messages = self._transport.receive(RECEIVE_S)
        except TransportError as error:
            self.away = str(error)
            self._end.wait(RETRY_S)
            return
        self.away = None
        for frames in messages:
            if frames:
                socket.send_multipart(list(frames), copy=False)
