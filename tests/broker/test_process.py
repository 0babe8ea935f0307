"""The loop of the broker in this thread: what it reads, answers and reports in a round, and how it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.bus_ends.event_pipe import EventPipe
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.support.clock import Clock
from tests.support.marks import at_once
from tests.support.waiting import WAIT_S
from zmqrl.broker import events as ev
from zmqrl.broker import process
from zmqrl.broker.process import Broker
from zmqrl.config.plan import Boot, Endpoints, TcpListen
from zmqrl.messages import bus
from zmqrl.messages.frames import pack, unpack
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import SegmentId, SegmentMeta, Version
from zmqrl.wire.sockets import connect


class Process:
    """A broker, and a peer on its host."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.plan, self.folder = bus_plan(), folder
        self.arena, self.pipe = Arena.private(self.plan), EventPipe()
        names = ("segments", "descriptors", "notices", "control")
        self.ends = Endpoints(*(f"ipc://{folder}/{name}" for name in names))
        self.boot = Boot("broker", 0, 0, "local", self.plan, self.ends, {"events": self.pipe.write_fd}, **more)
        self.broker = Broker(self.boot, self.arena)
        self._context: zmq.Context[Any] = zmq.Context()
        self.peer = connect(self._context, zmq.DEALER, self.ends.control)

    def round(self) -> None:
        """Whatever was sent has arrived."""
        assert dict(self.broker._poller.poll(WAIT_S * 1000)), "nothing arrives"
        self.broker._round()

    def report(self, index: int = 0, remote: bool = False) -> None:
        self.peer.send(pack(bus.WorkerReport(index, 0, 0, -1, remote, [], [], [], [], 0, 0)))
        self.round()

    def received(self) -> list[bus.Message]:
        messages = []
        while self.peer.poll(0 if messages else WAIT_S * 1000):
            messages.append(unpack(self.peer.recv()))
        return messages

    def events(self) -> list[dict[str, Any]]:
        return self.pipe.read(0)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.pipe.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(**more: Any) -> Process:
        made.append(Process(tmp_path, **more))
        return made[-1]

    yield start
    for one in made:
        if not one.broker._sockets._context.closed:
            one.broker.close()
        one.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    return made


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handler")
def test_it_routes_until_sigterm(make: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    monkeypatch.setattr(process, "Broker", lambda boot, arena: made.broker)
    monkeypatch.setattr(Arena, "attach", lambda plan, fd: made.arena)
    seen: list[str] = []

    def end_when_ready() -> None:
        seen.extend(event["event"] for event in made.pipe.read(WAIT_S))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    thread = threading.Thread(target=end_when_ready)
    thread.start()
    boot = Boot("broker", 0, 0, "local", made.plan, made.ends, {"arena": -1})
    assert process.main(boot) == 0
    thread.join()
    assert seen == ["ready"]
    assert made.broker._sockets._context.closed


def test_a_stop_ends_the_wait_of_the_loop(make: Callable[..., Process]) -> None:
    made = make()
    assert made.broker._poller.poll(0) == []
    made.broker.stop()
    assert made.broker._poller.poll(0) == [(made.broker._wake_read, zmq.POLLIN)]


@pytest.mark.parametrize("listen", [None, TcpListen("127.0.0.1")], ids=["one host", "several hosts"])
def test_other_hosts_are_listened_for_and_awaited_where_there_are_some(
    make: Callable[..., Process], listen: TcpListen | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arena, "begin_broker", lambda arena: 2)  # there was one before
    made = make(listen=listen)
    assert made.broker._state.awaits_claims == (listen is not None)
    made.broker.stop()
    made.broker.run()
    assert [event["event"] for event in made.events()] == ["listening"] * (listen is not None) + ["ready"]
    ports = made.broker._sockets.ports
    assert (ports is not None and all(ports)) == (listen is not None)


def test_a_worker_is_answered_in_the_round_of_its_report(make: Callable[..., Process]) -> None:
    made = make()
    made.report()
    (answer,) = made.received()
    assert isinstance(answer, bus.WorkerAssignments) and answer.spawn == 0


def test_what_is_sealed_at_the_end_is_accepted(make: Callable[..., Process]) -> None:
    made = make()
    made.broker._state.handle_all([ev.HostReported({0: 0}, (), "local", (0,)), ev.WorkerReported(0, 0, (), {})])
    snapshot = made.broker._state.snapshot(0)
    assert snapshot is not None
    ref = snapshot.leases[0]
    made.arena.write_meta(ref.slot, SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), ROWS))
    made.arena.seal(ref)
    made.arena.streams.write_producer(0, ProducerRecord(0, 0, ROWS))
    made.broker.stop()
    made.broker.run()
    assert made.arena.ledger().stored == ROWS


def test_refused_messages_are_counted_reported_once_per_heartbeat_and_logged_at_the_end(
    make: Callable[..., Process], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, now = make(), [100.0]
    monkeypatch.setattr(made.broker._clock, "now", lambda: now[0])
    made.broker._round()
    assert made.events() == [], "nothing was refused"
    for _ in range(2):
        made.peer.send_multipart([b"a", b"b"])
        made.round()
    assert made.events() == [], "a heartbeat has not passed"
    for _ in range(2):
        now[0] += made.plan.config.limits.heartbeat_s
        made.broker._round()
    assert made.events() == [{"event": "refused", "counts": {"frames": 2}}]
    made.broker.close()
    assert "messages rejected: {'frames': 2}" in caplog.text


class Receiver:
    """In place of the receiver of segments."""

    def __init__(self) -> None:
        self.away: str | None = None
        self.forwarded: list[list[bytes]] = []

    def receive(self, most: int) -> list[list[bytes]]:
        forwarded, self.forwarded = self.forwarded, []
        return forwarded

    def close(self) -> None:
        pass


def test_segments_of_another_memory_backend_are_taken_in_and_its_absence_is_reported_once(
    make: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now, receiver, taken = make(), [100.0], Receiver(), list[list[bytes]]()
    assert made.broker._segment_receiver is None
    monkeypatch.setattr(made.broker, "_segment_receiver", receiver)
    monkeypatch.setattr(made.broker._clock, "now", lambda: now[0])
    monkeypatch.setattr(made.broker._inbound, "on_forwarded", taken.append)
    receiver.forwarded = [[b"segment"]]
    problems = []
    for away in (None, "it is away", "it is away", None, None):
        receiver.away = away
        now[0] += made.plan.config.limits.heartbeat_s
        made.broker._round()
        problems.append([(event["cause"], event["done"]) for event in made.events()])
    assert problems == [
        [],
        [("it is away", "no segments arrive over it; retrying")],
        [],
        [("the memory backend delivers again", "segments arrive")],
        [],
    ]
    assert taken == [[b"segment"]]


class Poller:
    """Time passes while it waits."""

    def __init__(self, clock: Clock, at_wait: Callable[[], None]) -> None:
        self._clock, self._at_wait = clock, at_wait
        self.waits: list[int] = []

    def poll(self, timeout_ms: int) -> list[Any]:
        self.waits.append(timeout_ms)
        self._clock.now += timeout_ms / 1000
        self._at_wait()
        return []


@at_once
@pytest.mark.parametrize("ends", [True, False])
def test_workers_of_other_hosts_are_stopped_and_waited_for(
    make: Callable[..., Process], clock: Clock, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    made = make()
    made.report(1, remote=True)
    made.received()

    def end() -> None:
        (answer,) = made.received()
        assert isinstance(answer, bus.WorkerAssignments) and answer.stop
        if ends:
            made.broker._state.handle(ev.WorkerExited(1, 0))

    poller = Poller(clock, end)
    monkeypatch.setattr(made.broker, "_poller", poller)
    made.broker._drain_remote_workers()
    assert poller.waits == [int(process.DRAIN_S * 1000) + 1]
    assert made.broker._state.workers.has_remote == (not ends)


def failing() -> bool:
    raise PermissionError(13, "Permission denied")


def test_socket_files_that_were_removed_are_made_again_and_each_problem_is_reported_once(
    make: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    broker, control = made.broker, made.folder / "control"
    broker._keep_bound()
    assert made.events() == []
    control.unlink()
    bind_again = broker._sockets.bind_again
    monkeypatch.setattr(broker._sockets, "bind_again", failing)
    for _ in range(2):
        broker._keep_bound()
    (problem,) = made.events()
    assert problem["cause"] == (
        "the broker's socket files were removed and cannot be recreated: [Errno 13] Permission denied"
    )
    monkeypatch.setattr(broker._sockets, "bind_again", bind_again)
    for _ in range(2):
        broker._keep_bound()
    (problem,) = made.events()
    assert (problem["cause"], problem["done"]) == ("the broker's socket files were removed", "sockets bound again")
    assert control.exists()
    monkeypatch.setattr(broker._sockets, "bind_again", failing)
    broker._keep_bound()
    assert len(made.events()) == 1, "another time"
