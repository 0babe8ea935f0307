"""Who steps what, when workers and hosts say so in any order: at the start, and to a broker after another."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared_memory"))
from bus_plans import bus_plan

from zmqrl.broker import events as ev
from zmqrl.broker.state import BrokerState
from zmqrl.shared_memory.arena import Arena


def hello(index: int, broker: int | None = None, streams: dict[int, int] | None = None) -> list[ev.Event]:
    """What the agent and the only worker of a host say."""
    return [
        ev.HostIs({index: 0}, (), f"far{index}", (index,)),
        ev.WorkerIs(index, 0, (), streams or {}, broker, remote=True),
    ]


def second_broker() -> BrokerState:
    """Its arena has a stream of each of two far workers."""
    plan = bus_plan("sync", 2, 2, slots=9)
    arena = Arena.private(plan)
    first = BrokerState(plan, arena)
    first.handle_all([*hello(0), *hello(1)])
    assert [streams_of(first, index) for index in (0, 1)] == [{0: 0}, {1: 0}]
    second = BrokerState(plan, arena)
    second.await_claims()
    second.handle(ev.HostIs({}, (), plan.config.learner.host, ()))
    return second


def streams_of(broker: BrokerState, index: int) -> dict[int, int]:
    standing = broker.standing(index)
    assert standing is not None and standing.orders is not None
    return {order.vector_env: order.incarnation for order in standing.orders}


def test_each_goes_on_with_its_own() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    broker.handle_all(hello(0, 1, {0: 0}))
    assert [streams_of(broker, index) for index in (0, 1)] == [{0: 0}, {1: 0}]
    assert not broker.requests


def test_what_nobody_claims_in_time_is_taken_up_by_who_is_there() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    assert not broker.requests
    broker.handle(ev.WaitedEnough())
    assert [(request.vector_env, request.incarnation) for request in broker.requests] == [(0, 1)]


def test_who_was_given_up_is_known() -> None:
    broker = second_broker()
    broker.handle_all(hello(1, 1, {1: 0}))
    assert not broker.gave_up((1,))
    broker.handle(ev.HostIs({}, (1,), "far1"))
    assert broker.gave_up((1,)) and not broker.gave_up(()) and not broker.gave_up((0, 1))


def test_a_worker_whose_host_speaks_last_is_not_sent_away() -> None:
    plan = bus_plan("sync", 2, 2, slots=9)
    broker = BrokerState(plan, Arena.private(plan))
    near = plan.config.learner.host
    broker.handle_all([ev.WorkerIs(0, 0, (), {}), ev.HostIs({}, (), "far", ())])
    standing = broker.standing(0)
    assert standing is not None and not standing.stop
    broker.handle(ev.HostIs({0: 0}, (), near, (0,)))
    assert streams_of(broker, 0) == {0: 0, 1: 0}
