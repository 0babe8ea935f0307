"""The agent's part of the way back of weights, with the real link, store, arena and weights buffer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from tests.agent.plans import stand_in_plan
from tests.support.clock import Clock
from tests.support.waiting import WAIT_S
from zmqrl.agent.data_plane import SharedDataPlane
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.data_stores import directory
from zmqrl.data_stores.make import make_store
from zmqrl.errors import StoreError
from zmqrl.messages import bus
from zmqrl.messages.bus import HostReport
from zmqrl.messages.frames import pack, unpack
from zmqrl.shared_memory.weights import WeightsReader
from zmqrl.types import AllowList, ColumnSpec, HostKey, Notice, Version
from zmqrl.wire.runtime_folder import IpcFolder
from zmqrl.wire.sockets import make_keys

WAIT_MS = int(WAIT_S * 1000)
KEYS = make_keys()


class Broker:
    """PUB and ROUTER as the broker binds them."""

    def __init__(self, plan: RunPlan, folder: IpcFolder) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.publisher = self.context.socket(zmq.PUB)
        self.publisher.bind(folder.endpoints().notices)
        self.control = self.context.socket(zmq.ROUTER)
        self.control.bind(folder.endpoints().control)
        self.store = make_store(plan)

    def save(self, n: int) -> Notice:
        saved = self.store.save(Version(0, n), {"w": np.full(9000, n, np.float32)}, {})
        return Notice(Version(0, n), saved.key, saved.nbytes, saved.sha256, n)

    def publish(self, notice: Notice) -> None:
        self.publisher.send(pack(bus.CurrentNotice(notice)))


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    columns = (ColumnSpec("obs", "float32", (5, 2, 4)), ColumnSpec("valid", "bool", (4, 2)))
    return replace(stand_in_plan(tmp_path), columns=columns)


@pytest.fixture
def folder(tmp_path: Path, plan: RunPlan) -> Iterator[IpcFolder]:
    held = IpcFolder(tmp_path / "ipc", "r")
    yield held
    held.close()


@pytest.fixture
def broker(plan: RunPlan, folder: IpcFolder) -> Iterator[Broker]:
    Path(plan.store_path).mkdir()
    held = Broker(plan, folder)
    yield held
    held.context.destroy(linger=0)


@pytest.fixture
def plane(plan: RunPlan, folder: IpcFolder, broker: Broker) -> Iterator[SharedDataPlane]:
    held = SharedDataPlane(plan, folder.endpoints(), KEYS)
    held.report(HostReport("local", {0: 0, 1: 3}, [1], [2], [0, 1], ""))
    assert broker.control.poll(WAIT_MS)
    yield held
    held.close()


def take(plane: SharedDataPlane) -> Notice | None:
    poller = zmq.Poller()
    for socket in plane.sockets:
        poller.register(socket, zmq.POLLIN)
    assert poller.poll(WAIT_MS)
    return plane.take_notice()


def test_who_lives_reaches_the_broker(plane: SharedDataPlane, broker: Broker) -> None:
    message = unpack(broker.control.recv_multipart()[-1])
    assert message == HostReport("local", {0: 0, 1: 3}, [1], [2], [0, 1], "")


def test_an_answer_to_a_report_brings_the_current_version(plane: SharedDataPlane, broker: Broker) -> None:
    sender = broker.control.recv_multipart()[0]
    notice = broker.save(4)
    broker.control.send_multipart([sender, pack(bus.CurrentNotice(notice))])
    assert take(plane) == notice
    assert plane.current == notice
    read = WeightsReader(plane.fds_of("worker")["weights"]).read()
    assert read is not None
    assert read[0] == notice
    broker.control.send_multipart([sender, pack(bus.CurrentNotice(notice))])
    assert take(plane) is None, "known already"
    broker.control.send_multipart([sender, pack(bus.CurrentNotice(broker.save(3)))])
    assert take(plane) is None, "older"


def test_a_version_that_was_missed_is_read_before_the_newest(plane: SharedDataPlane, broker: Broker) -> None:
    """pipelined: a round may still be acted with it."""
    sender = broker.control.recv_multipart()[0]
    first, second, third = (broker.save(n) for n in (4, 5, 6))
    newest = replace(third, before=second)
    broker.control.send_multipart([sender, pack(bus.CurrentNotice(first))])
    assert take(plane) == first
    broker.control.send_multipart([sender, pack(bus.CurrentNotice(newest))])
    assert take(plane) == newest
    reader = WeightsReader(plane.fds_of("worker")["weights"])
    assert [reader.version(n) for n in (4, 5, 6)] == [None, second.version, third.version]


def test_only_a_broker_has_the_newest_list_and_the_key(plan: RunPlan, plane: SharedDataPlane, broker: Broker) -> None:
    first, second = AllowList(1, {"k": HostKey("b", 1)}), AllowList(2, {}, {"digest": "c"})
    for allowed, newest in ((first, first), (second, second), (first, second)):
        plane.allow(allowed)
        boot = plane.boot_of("broker", Boot("broker", 0, 0, "local", plan))
        assert (boot.keys, boot.allowed, boot.endpoints) == (KEYS, newest, plane.endpoints)
    for role in ("learner", "worker", "evaluator"):
        boot = plane.boot_of(role, Boot(role, 0, 0, "local", plan))
        assert (boot.keys, boot.allowed) == (None, AllowList())
    plane.report(HostReport("local", {}, [], [], [], ""))
    received = []
    while len(received) < 6:
        assert broker.control.poll(WAIT_MS)
        received.append(unpack(broker.control.recv_multipart()[-1]))
    lists = [message.allowed for message in received if isinstance(message, bus.AllowedKeys)]
    assert lists == [first, second, second, second], "also with each report: it may be lost"


def test_descriptors_by_role(plane: SharedDataPlane) -> None:
    assert set(plane.fds_of("worker")) == set(plane.fds_of("broker")) == {"arena", "weights"}
    assert set(plane.fds_of("learner")) == {"arena"}
    assert plane.fds_of("evaluator") == {}
    for fd in plane.fds_of("worker").values():
        os.fstat(fd)


def test_the_ledger_of_an_untouched_arena_balances(plane: SharedDataPlane) -> None:
    ledger = plane.ledger()
    assert ledger is not None
    assert ledger.balanced
    assert ledger.produced == 0


def test_the_agent_does_not_wait_for_a_version_that_cannot_be_read(
    plane: SharedDataPlane, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = broker.save(1)
    Path(broker.store.path, lost.key).unlink()
    broker.publish(lost)
    assert plane.sockets[0].poll(WAIT_MS)
    clock = Clock()
    monkeypatch.setattr(directory, "time", clock)
    with pytest.raises(StoreError):
        plane.take_notice()
    assert clock.now < 1.0
    again = broker.save(1)
    broker.publish(again)
    assert take(plane) == again
