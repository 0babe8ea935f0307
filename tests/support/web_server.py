"""A web server that keeps what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class WebServer:
    """On a free port of this machine. `answers`: the status of each request, the last for all further ones."""

    def __init__(self, answers: Sequence[int] = (204,), hold: bool = False) -> None:
        """`hold`: no request is answered before the end."""
        self.paths: list[str] = []
        self.posted: list[dict[str, Any]] = []
        self._release = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.paths.append(self.path)
                server.posted.append(json.loads(body))
                if hold:
                    server._release.wait(600.0)
                self.send_response(answers[min(len(server.posted), len(answers)) - 1])
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                server.paths.append(f"GET {self.path}")
                self.send_error(500)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WebServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
