"""A worker that hangs while its broker dies: the next one waits for its word, and has to notice that none comes."""

from __future__ import annotations

import pytest

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.liveness import Liveness
from zmqrl.broker.state import BrokerState
from zmqrl.broker.workers import Workers
from zmqrl.config.sections import LimitsSection
from zmqrl.messages.bus import Heartbeat
from zmqrl.shared_memory.arena import Arena

WORKER = 0


def test_it_is_stalled_and_the_others_continue_without_it() -> None:
    plan = bus_plan("async", 2, 2, slots=9)
    arena = Arena.private(plan)
    for index in (0, 1):
        BrokerState(plan, arena).handle(ev.WorkerReported(index, 0, (), {}))
    broker = BrokerState(plan, arena)
    host = plan.config.learner.host
    broker.handle(ev.HostReported({0: 0, 1: 0}, (), host, (0, 1)))
    broker.handle(ev.WorkerReported(1, 0, (), {}, broker=broker.incarnation))
    assert not broker.snapshot(1).leases  # type: ignore[union-attr]
    liveness = Liveness(LimitsSection(heartbeat_s=0.5, stalled_after_s=5.0), Workers(2), "local")
    judged = []
    for second in range(8):
        liveness.receive(Heartbeat("worker", WORKER, 0, progress=17), second)
        judged += liveness.judge(broker.has_work, second)
    assert [judgement.state for judgement in judged] == ["stalled"]
    broker.handle(ev.HostReported({1: 0}, (), host, (0, 1)))  # killed and reaped
    assert broker.snapshot(1).leases  # type: ignore[union-attr]


@pytest.mark.parametrize(("ready", "lost_at"), [(True, 5), (False, 20)])
def test_a_worker_without_any_message_to_this_broker_is_lost(ready: bool, lost_at: int) -> None:
    """It was stopped before the broker died: the next one hears of it from its agent alone."""
    liveness = Liveness(LimitsSection(heartbeat_s=0.5, lost_after_s=5.0, start_s=20.0), Workers(1), "local")
    judged = {}
    for second in range(30):
        liveness.expect(WORKER, 3, ready, second)
        for judgement in liveness.judge(lambda index: True, second):
            judged[second] = (judgement.state, judgement.spawn)
    assert judged == {lost_at: ("lost", 3)}


def test_its_silence_counts_from_when_it_was_ready() -> None:
    liveness = Liveness(LimitsSection(heartbeat_s=0.5, lost_after_s=5.0, start_s=20.0), Workers(1), "local")
    lost = []
    for second in range(12):
        liveness.expect(WORKER, 3, second >= 4, second)
        lost += [second for judgement in liveness.judge(lambda index: True, second) if judgement.state == "lost"]
    assert lost == [9]


def test_an_expected_worker_that_came_is_judged_by_its_heartbeats() -> None:
    liveness = Liveness(LimitsSection(heartbeat_s=0.5, lost_after_s=5.0, start_s=20.0), Workers(1), "local")
    liveness.expect(WORKER, 3, False, 0)
    liveness.receive(Heartbeat("worker", WORKER, 3, progress=0), 1)
    liveness.expect(WORKER, 3, False, 2)
    assert not liveness.judge(lambda index: False, 5.9)
    assert [judgement.state for judgement in liveness.judge(lambda index: False, 6.0)] == ["lost"]
