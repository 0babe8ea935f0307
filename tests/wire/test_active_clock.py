"""Time in which a process was frozen is not silence of the others."""

from __future__ import annotations

import pytest

from zmqrl.agent.host_agent import HostLease
from zmqrl.broker.liveness import Liveness
from zmqrl.broker.workers import Workers
from zmqrl.config.sections import LimitsSection
from zmqrl.messages.bus import Heartbeat
from zmqrl.wire.active_clock import ActiveClock

HEARTBEAT_S, TURN_S, FROZEN_S = 0.5, 0.5, 3600.0


class Time:
    def __init__(self) -> None:
        self.s = 100.0
        self.clock = ActiveClock(HEARTBEAT_S, lambda: self.s)

    def turns(self, seconds: float, turn_s: float = TURN_S) -> float:
        for _ in range(round(seconds / turn_s)):
            self.s += turn_s
            self.clock.now()
        return self.clock.now()


def test_it_counts_every_turn_of_a_loop() -> None:
    time = Time()
    assert time.turns(20.0) == pytest.approx(120.0)


def test_a_freeze_counts_as_one_turn() -> None:
    time = Time()
    time.turns(10.0)
    time.s += FROZEN_S
    assert time.clock.now() == pytest.approx(110.0 + 1.5)


def test_a_freeze_of_the_judge_loses_no_process_and_silence_after_it_counts() -> None:
    time, liveness = Time(), Liveness(LimitsSection(heartbeat_s=HEARTBEAT_S, lost_after_s=5.0), Workers(1), "local")
    liveness.receive(Heartbeat("worker", 0, 0, 1), time.clock.now())
    time.s += FROZEN_S
    assert not liveness.judge(lambda index: True, time.clock.now())
    assert not liveness.judge(lambda index: True, time.turns(3.0))
    assert [judged.state for judged in liveness.judge(lambda index: True, time.turns(1.0))] == ["lost"]


def test_a_host_lease_outlives_a_freeze_and_still_ends() -> None:
    time, lease = Time(), HostLease(5.0)
    lease.renew("launcher", time.clock.now())
    time.s += FROZEN_S
    assert lease.silent(time.clock.now()) is None
    assert lease.silent(time.turns(4.0)) == "launcher"


def test_a_loop_whose_turns_are_always_slow_reaches_its_deadlines() -> None:
    time, lease = Time(), HostLease(5.0)
    lease.renew("launcher", time.clock.now())
    assert lease.silent(time.turns(16.0, turn_s=4.0)) == "launcher"
