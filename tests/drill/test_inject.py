"""Faults done to real processes and directories, and taken back."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import loop_s
from zmqrl.drill.faults import SHARES, FaultAction, Kind, PlannedFault
from zmqrl.drill.inject import DEEDS, Scene, bring_store_back, end_attempt, signalled
from zmqrl.drill.recovery import RunSnapshot
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.supervision.process_table import ProcessId, identify

SLEEPER = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes."""
    started = [subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) for _ in range(2)]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    yield started
    for process in started:
        process.kill()
        process.communicate()


def _ids(sleepers: list[subprocess.Popen[bytes]]) -> list[ProcessId]:
    found = [identify(process.pid) for process in sleepers]
    return [process for process in found if process is not None]


def _state(process: ProcessId) -> str:
    text = Path(f"/proc/{process.pid}/stat").read_text()
    return text[text.rindex(")") + 2]


def test_several_processes_are_signalled_at_one_moment(sleepers: list[subprocess.Popen[bytes]]) -> None:
    """The least of several: the kernel may run another process between two signals."""
    spreads_s = [signalled(_ids(sleepers), signal.SIGCONT) for _ in range(20)]
    assert min(s for s in spreads_s if s is not None) < loop_s(), "in a loop of 1 ms"
    assert None not in spreads_s


def test_several_processes_are_killed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    spread_s = signalled(_ids(sleepers), signal.SIGKILL)
    assert spread_s is not None and spread_s > 0
    assert [process.wait(WAIT_S) for process in sleepers] == [-signal.SIGKILL] * 2


def test_none_is_signalled_when_one_is_gone(sleepers: list[subprocess.Popen[bytes]]) -> None:
    victims = _ids(sleepers)
    sleepers[1].kill()
    sleepers[1].wait(WAIT_S)
    assert signalled(victims, signal.SIGKILL) is None
    assert sleepers[0].poll() is None


def test_a_pause_ends_for_those_that_are_left(sleepers: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    victims = _ids(sleepers)
    scene = Scene(victims, tmp_path, tmp_path)
    begin, end, _ = DEEDS[FaultAction.PAUSE]
    assert begin(scene) is not None and end is not None
    for process in victims:
        until(lambda process=process: _state(process) == "T")
    sleepers[1].kill()
    sleepers[1].wait(WAIT_S)
    end(scene)
    until(lambda: _state(victims[0]) == "S")


def test_a_full_disk_limits_every_process_and_ends_for_every_one(
    sleepers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    victims = _ids(sleepers)
    before = [resource.prlimit(process.pid, resource.RLIMIT_FSIZE) for process in victims]
    begin, end, _ = DEEDS[FaultAction.NO_SPACE]
    assert begin(Scene(victims, tmp_path, tmp_path)) is not None and end is not None
    assert [resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] for process in victims] == [0, 0]
    end(Scene(victims, tmp_path, tmp_path))
    assert [resource.prlimit(process.pid, resource.RLIMIT_FSIZE) for process in victims] == before


def test_a_disk_that_is_not_a_small_one_is_not_filled(tmp_path: Path) -> None:
    assert DEEDS[FaultAction.DISK_FULL].begin(Scene([], tmp_path, tmp_path, tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_store_comes_back_as_it_was_and_what_was_written_meanwhile_is_put_aside(tmp_path: Path) -> None:
    store = tmp_path / "checkpoints"
    store.mkdir()
    (store / "full").write_text("before")
    scene = Scene([], store, tmp_path, number=3)
    assert DEEDS[FaultAction.STORE_AWAY].begin(scene) == 0.0
    assert not store.exists()
    store.mkdir()
    (store / "full").write_text("meanwhile")
    bring_store_back(scene)
    assert (store / "full").read_text() == "before"
    assert (tmp_path / "checkpoints.meanwhile-3" / "full").read_text() == "meanwhile"
    bring_store_back(scene)  # nothing is away
    assert (store / "full").read_text() == "before"


def test_a_process_is_killed_without_its_store(sleepers: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    store = tmp_path / "checkpoints"
    store.mkdir()
    scene = Scene(_ids(sleepers), store, tmp_path)
    begin, end, _ = DEEDS[FaultAction.KILL_AWAY]
    assert begin(scene) is not None and end is not None
    assert not store.exists()
    assert [process.wait(WAIT_S) for process in sleepers] == [-signal.SIGKILL] * 2
    end(scene)
    assert store.exists()
    assert begin(scene) is None, "the processes are gone"
    assert store.exists()


def test_a_store_that_does_not_exist_yet_is_not_taken_away(tmp_path: Path) -> None:
    assert DEEDS[FaultAction.STORE_AWAY].begin(Scene([], tmp_path / "none", tmp_path)) is None


@pytest.mark.parametrize(("role", "broker_killed"), [("broker", True), ("worker", False)])
def test_a_broker_that_was_killed_in_the_end_is_noted(
    sleepers: list[subprocess.Popen[bytes]], role: str, broker_killed: bool
) -> None:
    victim, other = _ids(sleepers)
    run = create_autospec(RunUnderTest, instance=True, exit_code=None)
    run.snapshot.side_effect = [
        RunSnapshot({f"{role}-0": victim, "learner-0": other}),
        *[RunSnapshot({f"{role}-0": victim})] * 2,
    ]
    run.await_end.return_value = 0
    ended = end_attempt(PlannedFault(0, 0.0, "witness", Kind(role, FaultAction.KILL_END)), run)
    assert ended.injected
    assert run.await_end.call_args.kwargs == {"broker_killed": broker_killed}


def test_every_action_is_done_here_or_ends_the_attempt() -> None:
    assert {FaultAction(action) for _, action in SHARES} - DEEDS.keys() == {
        FaultAction.KILL_RESUME,
        FaultAction.KILL_END,
    }
