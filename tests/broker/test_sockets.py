"""What a broker that cannot listen raises, and that it leaves no socket open."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.support.raising import raises
from tests.support.waiting import until
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.config.plan import Endpoints, TcpListen
from zmqrl.errors import ConfigError
from zmqrl.types import AllowList
from zmqrl.wire.gate import DOMAIN, ENROLMENT
from zmqrl.wire.sockets import connect, make_keys


def ends_in(folder: Path) -> Endpoints:
    return Endpoints(*(f"ipc://{folder}/{name}" for name in ("segments", "descriptors", "notices", "control")))


def test_an_invalid_peer_is_counted_at_each_port(tmp_path: Path) -> None:
    sockets = BrokerSockets(ends_in(tmp_path), TcpListen("127.0.0.1"), make_keys(), AllowList(1, {}))
    context: zmq.Context[Any] = zmq.Context()
    try:
        assert sockets.ports is not None
        for port in sockets.ports:
            before = sockets.guard().total()
            stranger = connect(context, zmq.DEALER, f"tcp://127.0.0.1:{port}")  # without a key
            until(lambda before=before: sockets.guard().total() > before)  # type: ignore[misc]
            stranger.close(0)
    finally:
        sockets.close()
        context.destroy(0)


def test_hosts_are_enrolled_at_control_alone(tmp_path: Path) -> None:
    sockets = BrokerSockets(ends_in(tmp_path), TcpListen("127.0.0.1"), make_keys(), AllowList(1, {}))
    try:
        domains = [at.getsockopt(zmq.ZAP_DOMAIN) for at in (sockets.segments, sockets.notices, sockets.control)]
        assert domains == [DOMAIN, DOMAIN, ENROLMENT]
    finally:
        sockets.close()


@pytest.mark.parametrize("place", range(3), ids=["segments", "notices", "control"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, place: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = tuple(port if place == at else 0 for at in range(3))
        with raises(ConfigError, key=("learner", "port"), value=str(port), fix="set another port, or auto"):
            BrokerSockets(ends_in(tmp_path), TcpListen("127.0.0.1", ports), make_keys(), AllowList(1, {}))  # type: ignore[arg-type]
