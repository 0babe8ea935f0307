"""What a broker that cannot listen raises, and that it leaves no socket open."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from zmqrl.broker.sockets import BrokerSockets
from zmqrl.config.plan import Endpoints, Listen
from zmqrl.errors import ConfigError
from zmqrl.types import AllowList
from zmqrl.wire.sockets import make_keys


@pytest.mark.parametrize("place", range(3), ids=["segments", "notices", "control"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, place: int) -> None:
    ends = Endpoints(*(f"ipc://{tmp_path}/{name}" for name in ("segments", "descriptors", "notices", "control")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = tuple(port if place == at else 0 for at in range(3))
        with pytest.raises(ConfigError, match=rf"cannot bind learner\.port, port {port} of 127\.0\.0\.1: .*in use"):
            BrokerSockets(ends, Listen("127.0.0.1", ports), make_keys(), AllowList(1, {}))  # type: ignore[arg-type]
