"""The server of the page answers who has the token, under a name of this machine, and nobody else."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S
from tests.viewer.stored import store
from zmqrl.viewer.server import PAGES, ViewServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    (store(tmp_path / "a") / "videos").mkdir()
    (tmp_path / "a" / "videos" / "1-v1.mp4").write_bytes(b"\0\xff")
    with ViewServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(server: ViewServer, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=WAIT_S)
    try:
        connection.request("GET", path, headers={name.capitalize(): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_the_token_of_the_url_becomes_a_cookie(server: ViewServer) -> None:
    status, headers, _ = asked(server, server.url.partition(str(server.server_port))[2])
    cookie = headers["Set-Cookie"]
    assert (status, headers["Location"]) == (303, "/") and "HttpOnly; SameSite=Strict" in cookie
    own = cookie.partition(";")[0]
    status, headers, content = asked(server, "/api/runs", cookie=own)
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert [found["name"] for found in json.loads(content)["runs"]] == ["a"]
    run = json.loads(content)["runs"][0]["run_dir"]
    for path in PAGES:
        status, headers, content = asked(server, path, cookie=own)
        assert status == 200 and content and "default-src 'none'" in headers["Content-Security-Policy"]
    status, headers, content = asked(server, f"/api/video?run={run}&video=1-v1.mp4", cookie=own)
    assert (status, headers["Content-Type"], content) == (200, "video/mp4", b"\0\xff")
    assert asked(server, f"/api/video?run={run}&video=..%2Fconfig.json", cookie=own)[0] == 400
    one = f"/api/differences?run={run}"
    for path, expected in (("/view.py", 404), ("/../view.py", 404), ("/api/details?run=/etc", 400), (one, 400)):
        assert asked(server, path, cookie=own)[0] == expected


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/runs",
        "/?token=wrong",
        "/?token=",
        "/view.js",
        "/api/log?run=a&log=b",
        "/api/video?run=a&video=1-v1.mp4",
    ],
)
def test_without_the_token_nothing_is_served(server: ViewServer, path: str) -> None:
    for cookie in ("", "zmqrl=x", f"{server.cookie}=wrong", f"{server.cookie}=", "=;;\x01"):
        status, _, content = asked(server, path, cookie=cookie)
        assert status == 403 and b"token of this page" in content


@pytest.mark.parametrize(
    ("host", "expected"),
    [("evil.example", 403), ("evil.example:{}", 403), ("", 403), ("127.0.0.1", 403), ("localhost:9", 200)],
)
def test_another_host_is_refused(server: ViewServer, host: str, expected: int) -> None:
    """A name of another site may lead to loopback; a tunnel has another port."""
    cookie = f"{server.cookie}={server.token}"
    assert asked(server, "/api/runs", cookie=cookie, host=host.format(server.server_port))[0] == expected


def test_it_listens_on_loopback_alone(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
