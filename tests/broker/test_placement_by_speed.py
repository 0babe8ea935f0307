"""Vector envs of sync follow the measured speed of the workers: the broker's state with a clock and noise of the test.

Rounds are simulated: a worker steps one segment of each of its vector envs, and a version needs all of them. A vector
env that moves costs its new holder a replay.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Literal

import pytest

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.assignment import Assignment
from zmqrl.broker.events import Handover
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.owners import _gains, _round_s
from zmqrl.broker.workers import Workers
from zmqrl.config.codec import replace
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Notice, Version

MINUTES_10 = 600.0
Speed = Callable[[int, float], float]
"""Worker and seconds to seconds per segment."""


class Simulated:
    """Workers of one run in rounds. `segment_s`: without noise; `noise`: relative, drawn for each segment."""

    def __init__(
        self,
        workers: int,
        vector_envs: int,
        segment_s: Speed,
        noise: float = 0.0,
        replay_s: float = 0.0,
        digests: Mapping[int, str] | None = None,
        recovery: Literal["exact", "restart_episode"] = "exact",
    ) -> None:
        plan = bus_plan("sync", workers, vector_envs, slots=4 * vector_envs)
        plan = replace(plan, config=replace(plan.config, env=replace(plan.config.env, recovery=recovery)))
        self.ledger, self.workers = StreamLedger(Arena.private(plan), ROWS), Workers(workers)
        self.assignment = Assignment(
            replace(plan, workers={f"node{i}": 1 for i in range(workers)}), self.ledger, self.workers
        )
        self.segment_s, self.noise, self.replay_s, self.dice = segment_s, noise, replay_s, random.Random(7)
        self.now = 0.0
        self.counts = dict.fromkeys(range(workers), (0, 0.0))
        self.moves: dict[int, list[float]] = defaultdict(list)
        """Vector env to when it moved."""
        self.reported: list[ev.Relieved] = []
        self.versions: list[float] = []
        self._round = 0
        for index in range(workers):
            acting = (digests or {}).get(index, "same")
            self.workers.receive(f"node{index}", (index,), (), (), acting)
            self.workers.add(index, 0)
        self.assignment.review()
        self._announce()
        self._place()

    def loads(self) -> list[int]:
        holders = list(self.assignment.holders.values())
        return [holders.count(index) for index in self.counts]

    def run(self, until: float) -> None:
        while self.now < until:
            self._turn()

    def per_s(self, since: float) -> float:
        """Versions per second."""
        return sum(at >= since for at in self.versions) / (self.now - since)

    def _turn(self) -> None:
        held: dict[int, list[int]] = defaultdict(list)
        for vector_env, index in self.assignment.holders.items():
            held[index].append(vector_env)
        ends = []
        for index, vector_envs in held.items():
            took = sum(self._segment_s(index) for _ in vector_envs)
            segments, busy_s = self.counts[index]
            self.counts[index] = segments + len(vector_envs), busy_s + took
            ends.append(took)
        self.now += max(ends)
        for vector_env in self.assignment.holders:
            record = self.ledger.records[vector_env]
            record.next_index += 1
        self._round += 1
        self.versions.append(self.now)
        self._announce()
        for index, counts in self.counts.items():
            self._report(index, *counts)
        self._place()

    def _segment_s(self, index: int) -> float:
        return self.segment_s(index, self.now) * self.dice.uniform(1 - self.noise, 1 + self.noise)

    def _report(self, index: int, segments: int, busy_s: float) -> None:
        process = self.workers.process(index)
        if process is None:
            return
        streams = {v: a.incarnation for v, a in process.assigned.items()}
        counted = {"segments": segments, "busy_s": busy_s, "at": self.now}
        report = ev.WorkerReported(index, 0, (), streams, 0, process.serial, **counted)
        self.assignment.receive(process, report)
        self.assignment.release_stopped(process)

    def _announce(self) -> None:
        self.assignment.announce(Notice(Version(0, self._round), "k", 1, "s", 0).version, None)

    def _place(self) -> None:
        before = dict(self.assignment.holders)
        for _ in range(4):  # decided, stopped, requested from the learner, handed over
            for action in self.assignment.place():
                if isinstance(action, ev.Relieved):
                    self.reported.append(action)
            for index, counts in self.counts.items():
                self._report(index, *counts)
            for request in self.assignment.requests:
                self.assignment.answer(Handover(request.vector_env, request.incarnation, request.next_index, ()))
        moved = [v for v, index in self.assignment.holders.items() if before.get(v, index) != index]
        for vector_env in moved:
            self.moves[vector_env].append(self.now)
        self.now += self.replay_s if moved else 0.0


def optimum(vector_envs: int, segment_s: list[float]) -> float:
    """Versions per second of the best placement."""
    loads = [0] * len(segment_s)
    for _ in range(vector_envs):
        first = min(range(len(loads)), key=lambda i: (loads[i] + 1) * segment_s[i])
        loads[first] += 1
    return 1.0 / max(load * time_s for load, time_s in zip(loads, segment_s, strict=True))


def slow_from(since: float, factor: float, which: int = 2) -> Speed:
    return lambda index, now: 0.1 * (factor if index == which and now >= since else 1.0)


def test_a_host_that_is_ten_times_slower_has_no_vector_env_and_is_named() -> None:
    run = Simulated(3, 6, slow_from(0.0, 10.0), noise=0.1)
    assert run.loads() == [2, 2, 2]
    run.run(30.0)
    assert run.loads() == [3, 3, 0]
    assert [(r.index, r.before, r.after) for r in run.reported] == [(2, 2, 0)]
    assert run.reported[0].factor == pytest.approx(10.0, rel=0.2)
    run.run(MINUTES_10)
    without = optimum(6, [0.1, 0.1])
    assert run.per_s(0.0) >= without / 1.3, "with what was lost at the start, and to measure it again"


def test_a_host_that_becomes_slow_in_mid_run_is_relieved() -> None:
    run = Simulated(3, 6, slow_from(100.0, 10.0), noise=0.1)
    run.run(100.0)
    assert (run.loads(), dict(run.moves)) == ([2, 2, 2], {})
    run.run(120.0)
    assert run.loads() == [3, 3, 0]
    run.run(MINUTES_10)
    assert run.per_s(100.0) >= optimum(6, [0.1, 0.1]) / 1.3


@pytest.mark.parametrize(("workers", "vector_envs"), [(2, 6), (3, 6), (4, 12), (5, 32)])
def test_a_host_that_is_twice_as_slow_has_its_share(workers: int, vector_envs: int) -> None:
    run = Simulated(workers, vector_envs, slow_from(0.0, 2.0, workers - 1), noise=0.05)
    run.run(60.0)
    since = run.now
    run.run(300.0)
    best = optimum(vector_envs, [0.1] * (workers - 1) + [0.2])
    assert run.per_s(since) >= 0.9 * best, run.loads()


@pytest.mark.parametrize("lasting_s", [0.0, 3.0, 12.0, 20.0, 60.0])
@pytest.mark.whole
def test_noise_moves_no_vector_env_twice_within_30_s(lasting_s: float) -> None:
    """+-30 %: of each segment, or of a host for seconds, as its other users come and go."""
    dice = random.Random(3)
    drawn: dict[tuple[int, int], float] = defaultdict(lambda: dice.uniform(0.7, 1.3))

    def busy(index: int, now: float) -> float:
        return 0.05 * (drawn[index, int(now / lasting_s)] if lasting_s else 1.0)

    run = Simulated(4, 16, busy, noise=0.0 if lasting_s else 0.3)
    run.run(MINUTES_10)
    for times in run.moves.values():
        assert all(later - earlier >= 30.0 for earlier, later in pairwise(times)), times
    if not lasting_s:
        assert not run.moves


@pytest.mark.parametrize(("before_s", "after_s", "gains"), [(1.15, 1.0, True), (1.14, 1.0, False), (0.0, 0.0, False)])
def test_a_round_has_to_become_much_shorter(before_s: float, after_s: float, gains: bool) -> None:
    assert _gains(before_s, after_s) == gains


def test_a_round_takes_as_long_as_its_slowest_worker() -> None:
    assert _round_s({0: 3, 1: 2, 2: 0}, {0: 0.5, 1: 1.0, 2: 9.0}) == 2.0
    assert _round_s({}, {}) == 0.0


def test_moves_that_cost_much_are_rarer() -> None:
    """Replays of long episodes: after the first move its cost is known."""

    def alternating(index: int, now: float) -> float:
        return 0.1 * (1.8 if index == int(now / 40.0) % 2 else 1.0)

    cheap, dear = (Simulated(2, 8, alternating, replay_s=replay_s) for replay_s in (0.0, 25.0))
    cheap.run(MINUTES_10)
    dear.run(MINUTES_10)
    assert sum(map(len, cheap.moves.values())) > 4 * sum(map(len, dear.moves.values())) > 0


def test_a_host_that_is_fast_again_gets_vector_envs_back() -> None:
    run = Simulated(3, 6, lambda index, now: 1.0 if index == 2 and now < 100.0 else 0.1, noise=0.1)
    run.run(90.0)
    assert run.loads() == [3, 3, 0]
    run.run(MINUTES_10)
    assert run.loads() == [2, 2, 2]
    assert [(r.index, r.before, r.after) for r in run.reported][-1] == (2, 1, 2), "one vector env measured it before"


@pytest.mark.parametrize(("factor", "reported"), [(1.45, []), (1.6, [(1, 8, 6)])])
def test_a_host_that_is_somewhat_slower_loses_vector_envs_without_a_report(
    factor: float, reported: list[tuple[int, int, int]]
) -> None:
    run = Simulated(2, 16, slow_from(0.0, factor, 1))
    run.run(60.0)
    assert run.loads() == [10, 6]
    assert [(r.index, r.before, r.after) for r in run.reported] == reported


@pytest.mark.whole
def test_a_host_that_was_fast_in_between_is_measured_again_as_soon_as_at_first() -> None:
    """Each time that it is still slow it is left alone for twice as long."""
    run = Simulated(3, 6, lambda index, now: 1.0 if index == 2 and not 400.0 < now < 800.0 else 0.1)
    probed: list[float] = []
    before = 2
    while run.now < 1500.0:
        run._turn()
        load = run.loads()[2]
        if (before, load) == (0, 1):
            probed.append(run.now)
        before = load
    first, second, third, fourth = probed[:4]
    assert second - first > 200.0, "twice as long"
    assert second < 800.0 < third < 1000.0, "as at first"
    assert fourth - third > 200.0


def test_between_hosts_with_other_digests_the_assignment_stays_even() -> None:
    run = Simulated(3, 6, slow_from(0.0, 10.0), digests={2: "other"})
    run.run(60.0)
    assert (run.loads(), run.reported) == ([2, 2, 2], [])
    among = Simulated(4, 8, slow_from(0.0, 10.0, 3), digests={0: "other", 1: "other"})
    among.run(60.0)
    assert among.loads() == [2, 2, 4, 0], "by speed among those that are equal"


def test_where_a_move_would_end_episodes_none_moves_by_speed() -> None:
    run = Simulated(3, 6, slow_from(0.0, 10.0), recovery="restart_episode")
    run.run(60.0)
    assert (run.loads(), run.reported) == ([2, 2, 2], [])


def test_a_worker_that_dies_leaves_its_vector_envs_to_the_fast_ones() -> None:
    run = Simulated(4, 8, slow_from(0.0, 10.0, 3))
    run.run(60.0)
    assert run.loads() == [3, 3, 2, 0]
    process = run.workers.process(0)
    assert process is not None
    run.assignment.remove(process)
    run.workers.remove(process)
    run.workers.receive("node0", (), (0,))
    run.assignment.review()
    run._place()
    assert run.loads() == [0, 4, 4, 0]
