"""A port on the loopback of this machine that leads to one on the loopback of a host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from zmqrl.ssh.channel import SessionFailed, SshStream
from zmqrl.ssh.refusals import no_forward
from zmqrl.ssh.tunnel import CHUNK, pump_out

LOOPBACK = "127.0.0.1"
ACCEPT_AGAIN_S = 0.1
"""Pause after a failure, such as that of a process with as many open files as it may have."""


class PortForward:
    """Listens until `close`. What has connected is carried until one side ends it, or the SSH connection."""

    def __init__(self, host: str, open_port: Callable[[int], SshStream], port: int, here: int = 0) -> None:
        """`here` 0: any port that is free.

        Raises:
            OSError: `here` is in use.
            HostFailed: The sshd there forwards nothing, or nothing listens on `port`.
        """
        self._open_port, self._to, self._is_closed = open_port, port, threading.Event()
        self._listener = socket.create_server((LOOPBACK, here))
        self.port: int = self._listener.getsockname()[1]
        try:
            open_port(port).close()
        except SessionFailed as error:
            self._listener.close()
            raise no_forward(host, str(error)) from error
        self._thread = threading.Thread(target=self._accept, name=f"{host} forward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The port is free again."""
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                self._is_closed.wait(ACCEPT_AGAIN_S)
                continue
            try:
                threading.Thread(target=self._carry, args=(near,), name="forwarded", daemon=True).start()
            except RuntimeError:  # no further thread
                near.close()

    def _carry(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError, EOFError), contextlib.closing(self._open_port(self._to)) as far:
            outward = threading.Thread(target=pump_out, args=(near, far), daemon=True)
            outward.start()
            while data := far.recv(CHUNK):
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)
            outward.join()
