"""Every kind of memory backend passes the suite, and what it does to messages changes nothing of what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.bus_ends.far_bus import FarBus, ready, take, write
from tests.contracts.suites import name_of
from tests.memory_backends.faulty_backend import FaultyBackend, FaultyConfig
from tests.memory_backends.redis_server import redis_ends, redis_server
from tests.shared_memory.bus_plans import ROWS
from tests.support.marks import long
from tests.support.waiting import until
from zmqrl.broker.sockets import BrokerSockets
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Endpoints, RunPlan, TcpListen
from zmqrl.config.sections import MemoryBackendSection
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.memory_backends.zmq import ZmqBackend
from zmqrl.plugins import modules
from zmqrl.testing.memory_backend import MEMORY_BACKEND, BackendMaker, Ends, backend_maker
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.sockets import connect, make_keys

pytestmark = pytest.mark.whole
FAULTY = "tests.memory_backends.faulty_backend:FaultyBackend"
SEGMENTS, AT_ONCE = 40, 2


class _GuardedBackend(ZmqBackend):
    """The broker's end; its loop answers the requests of the gate."""

    doors: BrokerSockets

    def receive(self, timeout_s: float) -> list[list[Any]]:
        poller = zmq.Poller()
        for socket in (self.doors.segments, *self.doors.guards):
            poller.register(socket, zmq.POLLIN)
        ready = poller.poll(int(timeout_s * 1000))
        self.doors.guard()
        found = super().receive(0.0)
        return found if found or not ready else self.receive(timeout_s)


@contextmanager
def bus_maker(folder: Path) -> Iterator[BackendMaker]:
    server = make_keys()
    far = replace(make_keys(), server=server.public)
    context: zmq.Context[Any] = zmq.Context()

    @contextmanager
    def make(plan: RunPlan) -> Iterator[Ends]:
        run_id = plan.run_id
        names = ("segments", "descriptors", "notices", "control")
        (folder / run_id).mkdir(mode=0o700)
        ends = Endpoints(**{name: f"ipc://{folder}/{run_id}/{name}" for name in names})
        sender, receiver = ZmqBackend(NO_KEYS, plan), _GuardedBackend(NO_KEYS, plan)
        receiver.doors = BrokerSockets(
            ends, TcpListen("127.0.0.1"), server, AllowList(1, {far.public: HostKey("b", 1)})
        )
        receiver.use(receiver.doors.segments)
        assert receiver.doors.ports is not None
        far_end = Endpoints.tcp("127.0.0.1", receiver.doors.ports)
        socket = connect(context, zmq.PUSH, far_end.segments, far)
        sender.use(socket)
        try:
            yield Ends(sender, receiver)
        finally:
            socket.close()
            receiver.doors.close()

    yield make
    context.destroy(linger=0)


@contextmanager
def folder_maker(folder: Path) -> Iterator[BackendMaker]:
    yield backend_maker(FaultyBackend, FaultyConfig(str(folder)))


@contextmanager
def redis_maker(folder: Path) -> Iterator[BackendMaker]:
    with redis_server(folder) as server:
        yield redis_ends(server)


@contextmanager
def redis_tls_maker(folder: Path) -> Iterator[BackendMaker]:
    with redis_server(folder, tls=True) as server:
        yield redis_ends(server)


MAKERS: Mapping[str, Callable[[Path], Any]] = {
    "zmq": bus_maker,
    "folder": folder_maker,
    "redis": redis_maker,
    "redis with TLS": redis_tls_maker,
}


def test_every_kind_of_the_package_has_a_maker() -> None:
    assert set(modules("zmqrl.memory_backends", MemoryBackend)) <= set(MAKERS)


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendMaker]:
    with MAKERS[request.param](tmp_path) as made:
        yield made


@pytest.mark.parametrize("check", MEMORY_BACKEND, ids=name_of)
def test_the_contract(make: BackendMaker, check: Callable[[BackendMaker], None]) -> None:
    check(make)


def refused(events: list[dict[str, Any]]) -> dict[str, int]:
    """The counts that were reported last."""
    return next((event["counts"] for event in reversed(events) if event["event"] == "refused"), {})


@pytest.mark.parametrize(("fault", "reasons"), [
    ("none", set()),
    ("lost", set()),
    ("doubled", set()),
    long("reordered", set()),
    ("torn", {"wrong seal"}),
])  # fmt: skip
def test_each_segment_is_stored_once_and_whole(tmp_path: Path, fault: str, reasons: set[str]) -> None:
    backend = MemoryBackendSection(FAULTY, {"folder": str(tmp_path / "carried"), "fault": fault})
    bus = FarBus(tmp_path, backend=backend)
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        for index in range(0, SEGMENTS, AT_ONCE):
            for more in range(AT_ONCE):
                write(sink, index + more)
            assert take(source, AT_ONCE, sink) == list(range(index, index + AT_ONCE))
        until(lambda: sink.poll(0.05) and not sink._sealed, "acknowledgements")
        ledger = bus.arena.ledger()
        assert (ledger.produced, ledger.stored, ledger.balanced) == (SEGMENTS * ROWS, SEGMENTS * ROWS, True)
        counts = refused(bus.events.read(1.0)) if reasons else {}
        assert reasons <= set(counts), json.dumps(counts)
    finally:
        bus.close()
