"""`kubectl exec` over a WebSocket, the server's side of `v5.channel.k8s.io`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
BINARY, CLOSED, PING, PONG = 2, 8, 9, 10
CHUNK = 32768
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accept_of(key: str) -> str:
    """Answer to `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()


class WebSocket:
    """Frames over the two files of a connection. One thread reads, any writes."""

    def __init__(self, read: IO[bytes], write: Callable[[bytes], Any]) -> None:
        self._read, self._write, self._lock = read, write, threading.Lock()

    def send(self, code: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes([0x80 | code, size])
        elif size < 65536:
            head = bytes([0x80 | code, 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([0x80 | code, 127]) + size.to_bytes(8, "big")
        with self._lock:
            self._write(head + data)

    def receive(self) -> tuple[int, bytes] | None:
        """A message; None at the end of the connection."""
        code, whole = BINARY, b""
        while True:
            head = self._read.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 0x7F
            if size > 125:
                size = int.from_bytes(self._read.read(2 if size == 126 else 8), "big")
            mask, data = self._read.read(4), self._read.read(size)
            if len(data) < size:
                return None
            key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
            whole += (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")
            code = head[0] & 0x0F or code
            if head[0] & 0x80:
                return code, whole


def serve(socket: WebSocket, process: subprocess.Popen[bytes], is_frozen: Callable[[], bool]) -> None:
    """Connect both until one of them ends. `is_frozen`: an end of the process is not reported."""
    feeder = threading.Thread(target=_feed, args=(socket, process), daemon=True)
    feeder.start()
    assert process.stdout is not None and process.stderr is not None
    readers = [
        threading.Thread(target=_forward, args=(socket, channel, file), daemon=True)
        for channel, file in ((STDOUT, process.stdout), (STDERR, process.stderr))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    code = process.wait()
    if is_frozen():
        feeder.join()
        return
    with contextlib.suppress(OSError):
        socket.send(BINARY, bytes([ERROR]) + json.dumps(status_of(code)).encode())
        socket.send(CLOSED, (1000).to_bytes(2, "big"))
        feeder.join(5.0)


def status_of(code: int) -> dict[str, Any]:
    """What tells kubectl with which code a command has ended; a signal is 128 + its number."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    causes = [{"reason": "ExitCode", "message": str(code)}]
    text = f"command terminated with non-zero exit code: exit status {code}"
    return {"status": "Failure", "reason": "NonZeroExitCode", "message": text, "details": {"causes": causes}}


def _feed(socket: WebSocket, process: subprocess.Popen[bytes]) -> None:
    """From the connection to stdin, which ends with it."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        while (message := socket.receive()) is not None:
            code, data = message
            if code == PING:
                socket.send(PONG, data)
            elif code == CLOSED:
                break
            elif data[0] == CLOSE:
                process.stdin.close()
            elif data[0] == STDIN and not process.stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(data[1:])
                    process.stdin.flush()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _forward(socket: WebSocket, channel: int, file: IO[bytes]) -> None:
    with contextlib.suppress(OSError), file:
        while data := file.read1(CHUNK):  # type: ignore[attr-defined]
            socket.send(BINARY, bytes([channel]) + data)
