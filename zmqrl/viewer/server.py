"""The server of `zmqrl view`: on loopback alone, for who has its URL.

Every user of this machine reaches loopback, and so does every page in the user's browser. The token of the URL, which
becomes a cookie, keeps other users out, and the host of a request a page whose name leads here (DNS rebinding).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from zmqrl.errors import ConfigError
from zmqrl.viewer.answers import VIDEO_TYPES, Answers, Query, as_json

LOG = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Names in the Host header, with any port: an SSH tunnel may have another one here."""
SILENT_S = 30.0
"""Seconds until a connection without a request is closed."""
PAGES = {
    "/": ("index.html", "text/html"),
    "/view.js": ("view.js", "text/javascript"),
    "/view.css": ("view.css", "text/css"),
    "/uplot.js": ("uPlot.iife.min.js", "text/javascript"),
    "/uplot.css": ("uPlot.min.css", "text/css"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NO_TOKEN = "open the URL that zmqrl view has printed: it has the token of this page"


@dataclass(frozen=True)
class PageContent:
    """Status, type and content, and further headers."""

    status: HTTPStatus
    kind: str
    content: bytes
    headers: Mapping[str, str]


class ViewServer(ThreadingHTTPServer):
    """Serves a folder of runs until `shutdown`."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, queue: Path | None = None) -> None:
        """`port` 0: any that is free. OSError: it is in use."""
        self.token = secrets.token_urlsafe(24)
        self.answers = Answers(folder, queue)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies of one host are shared by its ports."""
        return f"zmqrl-{self.server_port}"

    @property
    def url(self) -> str:
        """What the user opens."""
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("a request failed", exc_info=True)  # a browser closes connections at any time


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        response = self._refused(parts.query) or self._response(parts.path, parse_qs(parts.query))
        self.send_response(response.status)
        kind = response.kind if response.kind in VIDEO_TYPES.values() else f"{response.kind}; charset=utf-8"
        length = str(len(response.content))
        for name, value in {"Content-Type": kind, "Content-Length": length, **HEADERS, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.content)

    def version_string(self) -> str:
        return "zmqrl"

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)

    def _refused(self, query: str) -> PageContent | None:
        """The response to a request that may see nothing, and to one with the token; None: it may see all."""
        if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS:
            return _text(HTTPStatus.FORBIDDEN, "this host is not served")
        given = parse_qs(query).get("token", [""])[0]
        if _is_same(given, self.server.token):
            cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            return PageContent(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})
        cookies = dict(cookie.strip().partition("=")[::2] for cookie in self.headers.get("Cookie", "").split(";"))
        is_known = _is_same(cookies.get(self.server.cookie, ""), self.server.token)
        return None if is_known else _text(HTTPStatus.FORBIDDEN, NO_TOKEN)

    def _response(self, path: str, query: Query) -> PageContent:
        answers = self.server.answers
        if path in PAGES:
            name, kind = PAGES[path]
            content = files("zmqrl.viewer").joinpath("static").joinpath(name).read_bytes()
            return PageContent(HTTPStatus.OK, kind, content, {})
        routes: dict[str, Callable[[Query], tuple[str, bytes]]] = {
            "/api/runs": lambda query: ("application/json", as_json(answers.runs(query))),
            "/api/sweeps": lambda query: ("application/json", as_json(answers.sweeps(query))),
            "/api/curves": lambda query: ("application/json", as_json(answers.curves(query))),
            "/api/details": lambda query: ("application/json", as_json(answers.details(query))),
            "/api/differences": lambda query: ("application/json", as_json(answers.differences(query))),
            "/api/log": lambda query: ("text/plain", answers.log(query).encode(errors="replace")),
            "/api/points.csv": lambda query: ("text/csv", answers.points(query).encode(errors="replace")),
            "/api/video": answers.video,
        }
        try:
            if path in routes:
                return PageContent(HTTPStatus.OK, *routes[path](query), {})
        except (ConfigError, OSError) as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            LOG.exception("the page could not be answered")
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        return _text(HTTPStatus.NOT_FOUND, "there is nothing here")


def _text(status: HTTPStatus, text: str) -> PageContent:
    return PageContent(status, "text/plain", text.encode(errors="replace"), {})


def _is_same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(errors="replace"), other.encode())
