from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from zmqrl.launch.run.events import take
from zmqrl.launch.run.problem_reports import StallDetector
from zmqrl.launch.run.state import RunState
from zmqrl.messages.process import State, WorkerState
from zmqrl.orchestrators.base import HostEvent
from zmqrl.types import ArenaUsage, JudgedRole


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    return RunState(stand_in_plan(tmp_path / "run"))


def stored(state: RunState, env_steps: int, updates: int = 0) -> None:
    values = {"env_steps": env_steps, "updates": updates}
    take(state, host_event("local", "metrics", role="learner", index=0, values=values))


def test_a_stalled_run_is_reported_once_until_it_continues(state: RunState) -> None:
    detector = StallDetector(60.0)
    stored(state, 100)
    reported = [second for second in range(200) if detector.check(state, second)]
    assert reported == [60]
    stored(state, 200)
    assert [second for second in range(200, 400) if detector.check(state, second)] == [260]


def test_a_batch_that_fills_slowly_is_not_a_stall(state: RunState) -> None:
    """The learner counts rows when it uses them; the broker's books have them before."""
    detector = StallDetector(60.0)
    stored(state, 100)
    reported = []
    for second in range(300):
        rows = min(second, 200) // 50 * 64
        take(state, host_event("local", "usage", processes={}, arena_usage=ArenaUsage(2, rows)))
        reported += [second] if detector.check(state, second) else []
    assert reported == [260]


def test_nor_is_a_learner_that_makes_up_for_what_it_owes(state: RunState) -> None:
    """After a death it may have many updates to do before workers are let on."""
    detector = StallDetector(60.0)
    stored(state, 100)
    for second in range(200):
        stored(state, 100, updates=second)
        assert not detector.check(state, second)
    assert [second for second in range(200, 400) if detector.check(state, second)] == [259]


def test_who_is_away_is_named(state: RunState) -> None:
    detector = StallDetector(60.0)
    stored(state, 1_500)
    take(state, host_event("local", "ready", role="worker", index=0))
    take(state, host_event("local", "started", role="worker", index=1))
    assert detector.check(state, 0.0) is None
    text = str(detector.check(state, 60.0))
    assert "no env step stored for limits.stalled_after_s (60 s), at 1,500" in text
    assert "local/worker-1 is starting" in text and "worker-0" not in text


@pytest.fixture
def ready(state: RunState) -> RunState:
    """A run of two workers in which all have started."""
    state.hosts["local"].state = "ready"
    stored(state, 1_500)
    for role, index in (("learner", 0), ("worker", 0), ("worker", 1)):
        take(state, host_event("local", "started", role=role, index=index, spawn=1))
        take(state, host_event("local", "ready", role=role, index=index))
    return state


def judged(state: RunState, role: JudgedRole, index: int, spawn: int, judgement: State) -> None:
    take(state, HostEvent("local", WorkerState(role, index, spawn, judgement), "broker", 0))


def stall(state: RunState) -> str:
    """The report of a run that stores nothing for a minute."""
    detector = StallDetector(60.0)
    assert detector.check(state, 0.0) is None
    return str(detector.check(state, 60.0))


def test_who_sends_no_heartbeats_or_makes_no_progress_is_named(ready: RunState) -> None:
    judged(ready, "learner", 0, 1, "lost")
    judged(ready, "worker", 0, 1, "slow")
    judged(ready, "worker", 1, 0, "lost")  # of the process before
    text = stall(ready)
    assert "local/learner-0 sends no heartbeats" in text and "local/worker-0 makes no progress" in text
    assert "worker-1" not in text and "responsive" not in text
    judged(ready, "worker", 0, 1, "well")
    take(ready, host_event("local", "exit", role="learner", index=0, code=None, expected=False))
    take(ready, host_event("local", "started", role="learner", index=0, spawn=2))
    assert "learner-0 is not ready" in stall(ready) and "worker" not in stall(ready)
    take(ready, host_event("local", "ready", role="learner", index=0))
    assert "all processes are running and responsive" in stall(ready)


def test_a_new_broker_has_no_judgements(ready: RunState) -> None:
    judged(ready, "learner", 0, 1, "lost")
    take(ready, host_event("local", "started", role="broker", index=0, spawn=1))
    assert "all processes are running and responsive" in stall(ready)


def test_a_worker_that_exited_cleanly_is_not_named(state: RunState) -> None:
    detector = StallDetector(60.0)
    stored(state, 1_500)
    take(state, host_event("local", "ready", role="learner", index=0))
    worker: dict[str, Any] = {"role": "worker", "index": 0, "code": 0, "cause": "exit code 0"}
    take(state, host_event("local", "exit", **worker, expected=True))
    state.hosts["local"].state = "drained"
    assert detector.check(state, 0.0) is None
    text = str(detector.check(state, 60.0))
    assert "all processes are running" in text and "local" not in text


def test_a_run_that_starts_or_ends_is_left_alone(state: RunState) -> None:
    detector = StallDetector(60.0)
    assert not any(detector.check(state, second) for second in range(100))
    stored(state, 100)
    take(state, host_event("local", "ended", role="learner", index=0, env_steps=100))
    assert not any(detector.check(state, second) for second in range(100, 300))
