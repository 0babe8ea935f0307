"""Who steps what, when workers and hosts say so in any order: at the start, and to a broker after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.state import BrokerState
from zmqrl.bus_ends.worker_end import ArenaWriter
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import SegmentId, SegmentMeta, Version


def hello(index: int, broker: int | None = None, streams: dict[int, int] | None = None) -> list[ev.Event]:
    """What the agent and the only worker of a host say."""
    return [
        ev.HostReported({index: 0}, (), f"far{index}", (index,)),
        ev.WorkerReported(index, 0, (), streams or {}, broker, remote=True),
    ]


def second_broker() -> BrokerState:
    """Its arena has a stream of each of two far workers."""
    plan = bus_plan("sync", 2, 2, slots=9)
    arena = Arena.private(plan)
    first = BrokerState(plan, arena)
    first.handle_all([*hello(0), *hello(1)])
    assert [streams_of(first, index) for index in (0, 1)] == [{0: 0}, {1: 0}]
    second = BrokerState(plan, arena, other_hosts=True)
    second.handle(ev.HostReported({}, (), plan.config.learner.host, ()))
    return second


def streams_of(broker: BrokerState, index: int) -> dict[int, int]:
    snapshot = broker.snapshot(index)
    assert snapshot is not None and snapshot.assignments is not None
    return {order.vector_env: order.incarnation for order in snapshot.assignments}


def test_each_continues_with_its_own() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    broker.handle_all(hello(0, 1, {0: 0}))
    assert [streams_of(broker, index) for index in (0, 1)] == [{0: 0}, {1: 0}]
    assert not broker.assignment.requests


def test_an_unclaimed_stream_is_handed_over_after_the_limit() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    assert not broker.assignment.requests
    broker.handle(ev.ClaimsExpired())
    assert [(request.vector_env, request.incarnation) for request in broker.assignment.requests] == [(0, 1)]


def test_what_was_claimed_is_not_awaited_once_its_holder_has_ended() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    broker.handle(ev.WorkerExited(1, 0))
    broker.handle(ev.WorkerReported(1, 1, (), {}, remote=True))
    assert [(request.vector_env, request.incarnation) for request in broker.assignment.requests] == [(1, 1)]


@pytest.mark.parametrize(("is_listed", "spawn"), [(False, 0), (True, 0), (True, 2)])
def test_a_report_of_an_older_process_or_of_one_that_its_agent_does_not_list_is_stale(
    is_listed: bool, spawn: int
) -> None:
    plan = bus_plan("sync", 1, 1, slots=9)
    broker = BrokerState(plan, Arena.private(plan))
    broker.handle(ev.HostReported({}, (), "local", (0,)))
    broker.handle(ev.WorkerReported(0, 1, (), {}))
    if is_listed:
        broker.handle(ev.HostReported({0: 1}, (), "local", (0,)))
    before = broker.snapshot(0)
    assert broker.handle(ev.WorkerReported(0, spawn, (), {}, serial=7)) == []
    assert broker.snapshot(0) == before


def test_a_failed_worker_is_recorded() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    assert not broker.workers.have_failed((1,))
    broker.handle(ev.HostReported({}, (1,), "far1"))
    assert broker.workers.have_failed((1,))
    assert not broker.workers.have_failed(()) and not broker.workers.have_failed((0, 1))


def test_a_worker_whose_host_speaks_last_is_not_sent_away() -> None:
    plan = bus_plan("sync", 2, 2, slots=9)
    broker = BrokerState(plan, Arena.private(plan))
    near = plan.config.learner.host
    broker.handle_all([ev.WorkerReported(0, 0, (), {}), ev.HostReported({}, (), "far", ())])
    snapshot = broker.snapshot(0)
    assert snapshot is not None and not snapshot.stop
    broker.handle(ev.HostReported({0: 0}, (), near, (0,)))
    assert streams_of(broker, 0) == {0: 0, 1: 0}


def remote_worker(index: int, broker: int, streams: dict[int, int], serial: int = -1, **more: Any) -> ev.WorkerReported:
    return ev.WorkerReported(index, 0, (), streams, broker, serial, remote=True, **more)


def restarted_with_a_near_worker() -> tuple[BrokerState, Arena]:
    """Worker 0 is near, 1 and 2 are far: the second broker has received reports of the near ones alone."""
    plan = bus_plan("sync", 3, 3, slots=9)
    near, arena = plan.config.learner.host, Arena.private(plan)
    first = BrokerState(plan, arena)
    first.handle_all([ev.HostReported({0: 0}, (), near, (0,)), ev.WorkerReported(0, 0, (), {}), *hello(1), *hello(2)])
    assert [streams_of(first, index) for index in (0, 1, 2)] == [{0: 0}, {1: 0}, {2: 0}]
    segment = {c.name: np.zeros(c.shape, c.dtype) for c in plan.columns}
    ref = next(iter(first.snapshot(1).leases))  # type: ignore[union-attr]
    meta = SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), ROWS)
    assert ev.Forward((ref,)) in first.handle(ev.Delivered(1, 0, ref, meta, segment))
    second = BrokerState(plan, arena, other_hosts=True)
    second.handle_all(
        [ev.HostReported({0: 0}, (), near, (0,)), ev.WorkerReported(0, 0, (), {0: 0}, second.incarnation)]
    )
    return second, arena


def test_a_remote_worker_back_before_its_agent_keeps_its_steps() -> None:
    broker, _ = restarted_with_a_near_worker()
    broker.handle(remote_worker(1, 1, {1: 0}))
    assert streams_of(broker, 1) == {1: 0}
    assert broker.snapshot(1).leases, "it can go on"  # type: ignore[union-attr]
    broker.handle_all([remote_worker(2, 1, {2: 0}), ev.HostReported({2: 0}, (), "far2", (2,))])
    broker.handle_all([ev.HostReported({1: 0}, (), "far1", (1,)), ev.ClaimsExpired()])
    assert [streams_of(broker, index) for index in (0, 1, 2)] == [{0: 0}, {1: 0}, {2: 0}]
    assert not broker.assignment.requests


def test_a_worker_whose_agent_does_not_return_in_time_stops() -> None:
    broker, _ = restarted_with_a_near_worker()
    broker.handle(remote_worker(1, 1, {1: 0}))
    broker.handle(ev.ClaimsExpired())
    assert streams_of(broker, 1) == {}


def test_an_accepted_segment_with_lost_acknowledgement_is_kept_when_its_vector_env_moves() -> None:
    """Its worker reports it as unaccepted to the broker after that; then it is notified, and stops."""
    broker, arena = restarted_with_a_near_worker()
    report = remote_worker(1, 1, {1: 0}, open_rows=[(1, 0, ROWS), (1, 1, 0)])
    broker.handle_all([ev.HostReported({1: 0}, (), "far1", (1,)), report])
    assert streams_of(broker, 1) == {1: 0}
    broker.handle(ev.HostReported({1: 0}, (), "far1", ()))
    snapshot = broker.snapshot(1)
    assert snapshot is not None and snapshot.assignments == ()
    broker.handle(remote_worker(1, broker.incarnation, {}, snapshot.serial, open_rows=[(1, 1, 0)]))
    ledger = arena.ledger()
    assert not any(ledger.dropped.values()) and ledger.stored == ledger.produced == ROWS


def test_streams_of_a_worker_dead_with_the_broker_move_when_its_agent_reports_it() -> None:
    broker, _ = restarted_with_a_near_worker()
    broker.handle(remote_worker(1, 1, {1: 0}))
    broker.handle(ev.HostReported({1: 0}, (), "far1", (1,)))
    assert not broker.assignment.requests
    successor = ev.WorkerReported(2, 1, (), {}, remote=True)
    broker.handle(successor)
    assert not broker.assignment.requests, "its predecessor may still be there"
    broker.handle(ev.HostReported({2: 1}, (), "far2", (2,)))
    assert [(request.vector_env, request.incarnation) for request in broker.assignment.requests] == [(2, 1)]
    assert streams_of(broker, 1) == {1: 0}


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("remote", [True, False])
def test_a_worker_that_stopped_a_vector_env_is_not_given_it_back_by_the_next_broker(remote: bool, stays: bool) -> None:
    """It was taken off, and one of its segments is not accepted: its env is gone, so it cannot continue."""
    plan = bus_plan("sync", 2, 2, slots=9)
    arena, host = Arena.private(plan), plan.config.learner.host
    first, alive = BrokerState(plan, arena), ev.HostReported({0: 0, 1: 0}, (), host, (0, 1))
    first.handle_all([alive, ev.WorkerReported(0, 0, (), {}), ev.WorkerReported(1, 0, (), {}, remote=remote)])
    (lease, *_) = first.snapshot(1).leases  # type: ignore[union-attr]
    if not remote:
        ArenaWriter(arena).seal(lease, SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), ROWS))
    drained = structs.replace(alive, workers=(0,))
    first.handle(drained)
    assert streams_of(first, 1) == {}
    second = BrokerState(plan, arena)
    leases = () if remote else (lease,)  # a credit ends with its broker
    again = ev.WorkerReported(1, 0, leases, {1: 0}, second.incarnation, -1, remote, [(1, 0, ROWS)], stopped=(1,))
    second.handle_all([ev.WorkerReported(0, 0, (), {0: 0}, second.incarnation), again, alive if stays else drained])
    snapshot = second.snapshot(1)
    assert snapshot is not None and snapshot.assignments == ()
    second.handle(ev.WorkerReported(1, 0, (), {1: 0}, second.incarnation, snapshot.serial, remote, stopped=(1,)))
    if remote:
        columns = {c.name: np.zeros(c.shape, c.dtype) for c in plan.columns}
        (lease, *_) = second.snapshot(1).leases  # type: ignore[union-attr]
        second.handle(ev.Delivered(1, 0, lease, SegmentMeta(SegmentId(1, 0, 0), Version(0, 0), ROWS), columns))
    second.handle(ev.WorkerReported(1, 0, (), {}, second.incarnation, snapshot.serial, remote))
    assert [(request.vector_env, request.next_index) for request in second.assignment.requests] == [(1, 1)]
    ledger = arena.ledger()
    assert (ledger.stored, ledger.produced, ledger.balanced) == (ROWS, ROWS, True)


def test_no_other_host_reports_for_a_live_worker_that_is_to_leave() -> None:
    """Its own agent lists it as alive and holds it no more; another broker knows no more of it."""
    plan = bus_plan("sync", 2, 2, slots=9)
    arena, near = Arena.private(plan), plan.config.learner.host
    BrokerState(plan, arena)
    broker = BrokerState(plan, arena)
    broker.handle_all([ev.WorkerReported(0, 0, (), {}, broker.incarnation), ev.HostReported({0: 0}, (), near, ())])
    broker.handle(ev.HostReported({1: 0}, (), "far", (1,)))
    snapshot = broker.snapshot(0)
    assert snapshot is not None and snapshot.stop, "it is there, and has to end"


def test_a_vector_env_without_a_holder_is_not_awaited() -> None:
    """Its stream record was rolled back with the learner when the broker died: no process can claim it."""
    plan = bus_plan("sync", 2, 2, slots=9)
    near, arena = plan.config.learner.host, Arena.private(plan)
    first = BrokerState(plan, arena)
    first.handle_all([ev.HostReported({0: 0}, (), near, (0,)), ev.WorkerReported(0, 0, (), {}), *hello(1)])
    ledger = StreamLedger(arena, ROWS)
    ledger.close_stream(1)
    assert ledger.roll_back(1, 1 << RESUMED_SHIFT, 0, 0)
    second = BrokerState(plan, arena, other_hosts=True)
    second.handle_all(
        [ev.HostReported({0: 0}, (), near, (0,)), ev.WorkerReported(0, 0, (), {0: 0}, second.incarnation)]
    )
    second.handle_all(hello(1))
    assert [(request.vector_env, request.incarnation > 0) for request in second.assignment.requests] == [(1, True)]
    assert streams_of(second, 0) == {0: 0}
