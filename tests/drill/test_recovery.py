"""The clock of a recovery: what counts as being back at work, by role."""

from __future__ import annotations

from zmqrl.config.codec import replace
from zmqrl.drill.faults import FaultAction, Kind, PlannedFault
from zmqrl.drill.recovery import RecentDeaths, Recovery, RunSnapshot
from zmqrl.supervision.process_table import ProcessId
from zmqrl.types import Version

OLD, NEW = ProcessId(10, 1), ProcessId(20, 2)
PLACES = ("worker-0", "worker-1", "broker-0", "learner-0", "evaluator-0", "agent-0", "launcher-0")
BEFORE = RunSnapshot(dict.fromkeys(PLACES, OLD), (100, 100), Version(0, 5))


def _recovery(role: str, action: FaultAction = FaultAction.KILL, index: int = 0, own_stream: bool = False) -> Recovery:
    return Recovery(PlannedFault(0, 0.0, "learning", Kind(role, action), index), BEFORE, 0.0, own_stream)


def _without(slot: str) -> RunSnapshot:
    return replace(BEFORE, processes={p: i for p, i in BEFORE.processes.items() if p != slot})


def _with(slot: str, **changes: object) -> RunSnapshot:
    return replace(BEFORE, processes={**BEFORE.processes, slot: NEW}, **changes)  # type: ignore[arg-type]


def test_a_broker_is_back_when_rows_are_stored_again() -> None:
    clock = _recovery("broker")
    assert not clock.is_over(replace(_without("broker-0"), stored=(120, 120)))  # booked by the one that died
    assert not clock.is_over(_with("broker-0", stored=(120, 120)))
    assert clock.is_over(_with("broker-0", stored=(120, 121)))


def test_a_worker_is_back_when_every_vector_env_continues_in_sync() -> None:
    clock = _recovery("worker", index=1)
    assert not clock.is_over(_without("worker-1"))
    assert not clock.is_over(_with("worker-1"))
    assert not clock.is_over(_with("worker-1", stored=(150, 100)))
    assert clock.is_over(_with("worker-1", stored=(150, 101)))


def test_a_worker_is_back_when_its_own_vector_env_continues_in_async() -> None:
    clock = _recovery("worker", index=1, own_stream=True)
    assert not clock.is_over(_with("worker-1"))
    assert not clock.is_over(_with("worker-1", stored=(150, 100)))
    assert clock.is_over(_with("worker-1", stored=(100, 101)))


def test_a_learner_is_back_when_it_improves_on_what_it_announced_first() -> None:
    clock = _recovery("learner")
    assert not clock.is_over(replace(_without("learner-0"), version=Version(0, 6)))
    assert not clock.is_over(_with("learner-0", version=Version(0, 7)))  # the dead one's last
    assert not clock.is_over(_with("learner-0", version=Version(1, 4)))  # from a checkpoint before
    assert not clock.is_over(_with("learner-0", version=Version(1, 4)))
    assert clock.is_over(_with("learner-0", version=Version(1, 5)))


def test_a_pause_is_over_with_the_next_version_of_the_same_process() -> None:
    clock = _recovery("learner", FaultAction.PAUSE)
    assert not clock.is_over(BEFORE)
    assert clock.is_over(replace(BEFORE, version=Version(0, 6)))


def test_a_worker_paused_counts_from_what_was_stored_then() -> None:
    clock = _recovery("worker", FaultAction.PAUSE)
    assert not clock.is_over(BEFORE)
    assert clock.is_over(replace(BEFORE, stored=(101, 101)))


def test_a_learner_killed_without_its_store_is_back_with_a_version_of_its_successor() -> None:
    """The successor is there before the store is, and waits for it."""
    clock = _recovery("learner", FaultAction.KILL_AWAY)
    assert not clock.is_over(BEFORE)
    assert not clock.is_over(replace(BEFORE, version=Version(1, 4)))
    assert clock.is_over(replace(BEFORE, version=Version(1, 5)))


def test_an_evaluator_is_back_when_it_is_there() -> None:
    clock = _recovery("evaluator")
    assert not clock.is_over(_without("evaluator-0"))
    assert clock.is_over(_with("evaluator-0"))


def test_a_run_whose_agent_died_is_back_with_a_version_of_the_resumed_one() -> None:
    clock = _recovery("agent")
    assert not clock.is_over(RunSnapshot())
    assert not clock.is_over(_with("learner-0", version=None))
    assert not clock.is_over(_with("learner-0", version=Version(1, 5)))
    assert clock.is_over(_with("learner-0", version=Version(1, 6)))


def test_several_roles_are_back_when_each_of_them_is() -> None:
    clock = _recovery("broker+learner")
    both = {**BEFORE.processes, "broker-0": NEW, "learner-0": NEW}
    assert not clock.is_over(RunSnapshot(both, (100, 100), Version(0, 5)))
    assert not clock.is_over(RunSnapshot(both, (101, 101), Version(0, 5)))  # the broker alone
    assert not clock.is_over(RunSnapshot(both, (101, 101), Version(1, 5)))
    assert clock.is_over(RunSnapshot(both, (101, 101), Version(1, 6)))


def test_a_run_that_was_frozen_is_back_with_its_next_version() -> None:
    clock = _recovery("run", FaultAction.PAUSE)
    assert not clock.is_over(BEFORE)
    assert clock.is_over(replace(BEFORE, version=Version(0, 6)))


def test_a_run_that_was_ended_is_back_with_a_version_of_the_resumed_one() -> None:
    clock = _recovery("worker", FaultAction.KILL_END)
    assert not clock.is_over(_with("learner-0", version=Version(0, 9)))
    assert not clock.is_over(_with("learner-0", version=Version(1, 9)))
    assert clock.is_over(_with("learner-0", version=Version(1, 10)))


def _fault(role: str, action: FaultAction = FaultAction.KILL, index: int = 0) -> PlannedFault:
    return PlannedFault(0, 0.0, "learning", Kind(role, action), index)


def test_a_death_shortly_before_delays_the_restart_of_that_process_alone() -> None:
    deaths = RecentDeaths(5.0)
    deaths.add(_fault("worker", index=1), 10.0)
    assert deaths.delay(_fault("worker", index=1), 14.9)
    assert deaths.delay(_fault("worker+broker", index=1), 14.9)
    assert not deaths.delay(_fault("worker", index=1), 15.0)
    assert not deaths.delay(_fault("worker", index=0), 11.0)


def test_a_pause_delays_no_restart_and_a_new_attempt_clears_the_deaths() -> None:
    deaths = RecentDeaths(5.0)
    deaths.add(_fault("broker", FaultAction.PAUSE), 10.0)
    assert not deaths.delay(_fault("broker"), 11.0)
    deaths.add(_fault("broker"), 10.0)
    deaths.add(_fault("learner", FaultAction.KILL_RESUME), 12.0)
    assert not deaths.delay(_fault("broker"), 12.0)
    assert deaths.delay(_fault("learner"), 12.0)
