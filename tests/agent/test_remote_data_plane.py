"""Weights to a host without the learner: from a store that it sees, else from the broker, whole or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from tests.agent.plans import stand_in_plan
from tests.support.marks import at_once
from tests.support.waiting import WAIT_S
from zmqrl.agent import remote_data_plane
from zmqrl.agent.remote_data_plane import PROBE_S, RemoteDataPlane
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Endpoints, RunPlan
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.data_stores.make import make_store
from zmqrl.errors import DeadlineExceeded
from zmqrl.messages import bus
from zmqrl.messages.bus import HostReport
from zmqrl.messages.command import Join
from zmqrl.messages.frames import pack, unpack
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.types import Notice, Version
from zmqrl.wire.probe import Unanswered
from zmqrl.wire.sockets import make_keys


class Broker:
    """PUB and ROUTER on loopback; `store` is the learner's."""

    def __init__(self, plan: RunPlan) -> None:
        Path(plan.store_path).mkdir(parents=True)
        self.context: zmq.Context[Any] = zmq.Context()
        self.publisher, self.control = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        notices, control = (s.bind_to_random_port("tcp://127.0.0.1") for s in (self.publisher, self.control))
        self.ports = (1, notices, control)
        self.store, self.store_path = make_store(plan), Path(plan.store_path)
        self.peer = b""
        self.fetches: list[list[int]] = []

    def save(self, n: int) -> Notice:
        saved = self.store.save(Version(0, n), {"w": np.full(9000, n, np.float32)}, {})
        return Notice(Version(0, n), saved.key, saved.nbytes, saved.sha256, n)

    def content(self, notice: Notice) -> bytes:
        return self.store.read(notice.key, notice.nbytes, notice.sha256, WAIT_S)

    def turn(self) -> None:
        """Hear what came; welcome whoever reports."""
        while self.control.poll(10):
            self.peer, said = self.control.recv_multipart()
            message = unpack(said)
            if isinstance(message, bus.Fetch):
                self.fetches.append(list(message.version))
            elif isinstance(message, bus.PathProbe):
                self.control.send_multipart([self.peer, said])
            else:
                self.control.send_multipart([self.peer, pack(bus.Welcome(broker=1, hanging=[]))])

    def announce(self, notice: Notice) -> None:
        self.control.send_multipart([self.peer, pack(bus.CurrentNotice(notice))])

    def send_weights(self, notice: Notice, content: bytes) -> None:
        parts = [content[:1000], content[1000:]]
        header = pack(bus.Weights(notice, parts=len(parts)))
        self.control.send_multipart([self.peer, header, *parts])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    held = Broker(stand_in_plan(tmp_path / "learners"))
    yield held
    held.context.destroy(linger=0)


Joined = Callable[..., RemoteDataPlane]


@pytest.fixture
def joined(tmp_path: Path, broker: Broker) -> Iterator[Joined]:
    planes: list[RemoteDataPlane] = []

    def join(store: Path, token: str | None) -> RemoteDataPlane:
        plan = replace(stand_in_plan(tmp_path / "far"), store_path=str(store), run_id="r")
        plane = RemoteDataPlane(plan, "b", None)
        planes.append(plane)
        asking = threading.Thread(target=lambda: plane.join(Join(["127.0.0.1"], broker.ports, token, None, None)))
        asking.start()
        until = time.monotonic() + WAIT_S
        while asking.is_alive() and time.monotonic() < until:
            broker.turn()
        asking.join(WAIT_S)
        plane.report(HostReport("b", {1: 0}, [], [], [1], ""))
        while time.monotonic() < until and plane.received == 0:
            broker.turn()
            assert plane.take_notice() is None
        return plane

    yield join
    for plane in planes:
        plane.close()


@at_once
@pytest.mark.whole
def test_only_workers_have_the_keys_of_their_host(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a broker without an address is not waited for."""
    monkeypatch.setattr(remote_data_plane, "PROBE_S", 3600.0)
    keys, server = make_keys(), make_keys().public
    plane = RemoteDataPlane(stand_in_plan(tmp_path / "far"), "b", keys)
    try:
        with pytest.raises(DeadlineExceeded, match="no address"):
            plane.join(Join([], broker.ports, None, server, None))
        plane.endpoints = Endpoints()
        boots = {role: plane.boot_of(role, Boot(role, 0, 0, "b", stand_in_plan(tmp_path))) for role in ("worker", "x")}
        assert boots["worker"].keys == replace(keys, server=server)
        assert boots["x"].keys is None
    finally:
        plane.close()


@pytest.mark.parametrize(("accepts", "probes"), [(True, 4), (False, 1)])
def test_a_broker_that_accepts_connections_is_probed_for_half_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepts: bool, probes: int
) -> None:
    made: list[float] = []

    def unanswered(join: Join, host: str, keys: object, deadline_s: float) -> None:
        made.append(deadline_s)
        raise Unanswered("no answer", accepts=accepts)

    plan = stand_in_plan(tmp_path / "far")  # host_lease_s is 60
    monkeypatch.setattr(remote_data_plane, "first_answering", unanswered)
    monkeypatch.setattr(remote_data_plane, "time", SimpleNamespace(monotonic=lambda: 8.0 * len(made)))
    plane = RemoteDataPlane(plan, "b", None)
    try:
        with pytest.raises(Unanswered):
            plane.join(Join(["127.0.0.1"], (1, 2, 3), None, None, None))
    finally:
        plane.close()
    assert made == [PROBE_S] * probes


def taken(plane: RemoteDataPlane, broker: Broker, condition: Callable[[], Any]) -> Notice | None:
    """Turns of agent and broker until it is true; what was taken last."""
    found, until = None, time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        broker.turn()
        found = plane.take_notice() or found
    return found


def held(plane: RemoteDataPlane) -> tuple[Notice, bytes] | None:
    return WeightsReader(plane.fds_of("worker")["weights"]).read()


def test_a_visible_store_is_read_without_requests(broker: Broker, joined: Joined) -> None:
    plane = joined(broker.store_path, DirectoryStore(str(broker.store_path), 2).leave_token("r"))
    assert plane.sees_store
    notice = broker.save(3)
    broker.announce(notice)
    assert taken(plane, broker, lambda: plane.current == notice) == notice
    assert held(plane) == (notice, broker.content(notice))
    assert broker.fetches == []


def test_a_version_that_is_missing_there_is_fetched(broker: Broker, joined: Joined) -> None:
    plane = joined(broker.store_path, DirectoryStore(str(broker.store_path), 2).leave_token("r"))
    notice = broker.save(3)
    content = broker.content(notice)
    (broker.store_path / notice.key).unlink()
    broker.announce(notice)
    taken(plane, broker, lambda: broker.fetches)
    broker.send_weights(notice, content)
    taken(plane, broker, lambda: plane.current == notice)
    assert held(plane) == (notice, content)


@pytest.mark.parametrize("token", [None, "another"])
def test_another_store_is_not_read_and_the_broker_is_queried_once(
    broker: Broker, joined: Joined, tmp_path: Path, token: str | None
) -> None:
    DirectoryStore(str(tmp_path / "own"), 2).leave_token("r")
    plane = joined(tmp_path / "own", token)
    assert not plane.sees_store
    notice = broker.save(3)
    broker.announce(notice)
    taken(plane, broker, lambda: broker.fetches)
    received = plane.received or 0
    broker.announce(notice)
    taken(plane, broker, lambda: (plane.received or 0) > received)
    broker.turn()
    assert (broker.fetches, plane.current) == ([[0, 3]], None)
    broker.send_weights(notice, broker.content(notice))
    taken(plane, broker, lambda: plane.current == notice)
    assert held(plane) == (notice, broker.content(notice))


def test_damaged_weights_are_refused_and_sound_ones_still_taken(broker: Broker, joined: Joined, tmp_path: Path) -> None:
    plane = joined(tmp_path / "own", None)
    sound, damaged = broker.save(3), broker.save(4)
    broker.send_weights(sound, broker.content(sound))
    broker.send_weights(damaged, broker.content(damaged)[:-1] + b"\xff")
    broker.send_weights(damaged, broker.content(damaged)[1:])
    received = plane.received or 0
    taken(plane, broker, lambda: (plane.received or 0) >= received + 3)
    assert plane.current == sound
    assert held(plane) == (sound, broker.content(sound))
    broker.send_weights(damaged, broker.content(damaged))
    taken(plane, broker, lambda: plane.current == damaged)
    assert held(plane) == (damaged, broker.content(damaged))


def test_another_broker_is_queried_once_it_has_a_version(broker: Broker, joined: Joined, tmp_path: Path) -> None:
    """Before the learner has announced to it again it would refuse, and be asked no more for a while."""
    plane = joined(tmp_path / "own", None)
    notice = broker.save(3)
    broker.announce(notice)
    taken(plane, broker, lambda: broker.fetches)
    broker.control.send_multipart([broker.peer, pack(bus.Welcome(broker=2, hanging=[]))])
    received = plane.received or 0
    taken(plane, broker, lambda: (plane.received or 0) > received)
    broker.turn()
    assert broker.fetches == [[0, 3]]
    broker.announce(notice)
    taken(plane, broker, lambda: len(broker.fetches) == 2)


def test_who_hangs_is_whom_the_last_answer_names(broker: Broker, joined: Joined, tmp_path: Path) -> None:
    plane = joined(tmp_path / "own", None)
    assert list(plane.hanging) == []
    hanging = bus.Hanging("worker", 1, 0, "lost")
    broker.control.send_multipart([broker.peer, pack(bus.Welcome(broker=1, hanging=[hanging]))])
    taken(plane, broker, lambda: list(plane.hanging) == [hanging])
    plane.report(HostReport("b", {1: 1}, [], [], [1], ""))
    taken(plane, broker, lambda: not plane.hanging)
