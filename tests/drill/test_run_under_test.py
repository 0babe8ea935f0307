"""What a drill says of a process that outlived its run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.agent.plans import stand_in_plan
from tests.support.held_process import held_process
from tests.support.waiting import until
from zmqrl.drill import drill, run_under_test
from zmqrl.drill.run_under_test import Attempt, RunUnderTest, processes_below
from zmqrl.drill.witness import ROW
from zmqrl.supervision.process_table import ProcessId, kill
from zmqrl.types import Ledger


def test_a_process_that_the_kernel_holds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_under_test, "GONE_S", 0.1)
    with held_process() as held:
        threading.Timer(0.5, kill, [held]).start()
        assert run_under_test._await_gone([held], time.monotonic()) == []


def test_a_process_that_the_kernel_has_just_released_has_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ProcessId(1, 1)
    left = [[process], [process], []]
    monkeypatch.setattr(run_under_test, "await_gone", lambda *_: left.pop(0))
    monkeypatch.setattr(run_under_test, "held_by_kernel", lambda _: len(left) > 1)
    assert run_under_test._await_gone([process], time.monotonic()) == []


def test_not_longer_than_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_under_test, "GONE_S", 0.1)
    monkeypatch.setattr(run_under_test, "END_S", 0.3)
    with held_process() as held:
        assert run_under_test._await_gone([held], time.monotonic()) == [held]
        assert run_under_test._what_it_does(held).startswith("D (disk sleep) in ")


ROWS = np.zeros(3, ROW)
"""Of one sealed segment that no broker accepted."""
LEDGER = Ledger(produced=7, stored=4, in_flight=3, dropped={}, duplicates_refused=0)


@pytest.mark.parametrize(("killed", "broker_killed"), [(True, False), (False, True)])
def test_what_no_broker_accepted_counts_as_in_flight_where_the_broker_was_killed_in_the_end(
    tmp_path: Path, killed: bool, broker_killed: bool
) -> None:
    """The stream records show such rows in flight: the outside check reports no loss, and no row too many."""
    run = ended_with(Attempt(1, LEDGER, np.zeros(0, ROW), ROWS, killed, broker_killed))
    (given,) = drill._given(run, tmp_path)
    assert given.left_over and len(given.rows) == 3
    assert drill._ledger_rows(run) == (4, 7)


def test_an_attempt_that_ended_with_its_broker_has_nothing_in_flight(tmp_path: Path) -> None:
    run = ended_with(Attempt(1, LEDGER, np.zeros(0, ROW), ROWS))
    (given,) = drill._given(run, tmp_path)
    assert len(given.rows) == 0
    assert drill._ledger_rows(run) == (4, 4)


def ended_with(attempt: Attempt) -> RunUnderTest:
    plan = stand_in_plan(Path(), mode="async")
    return RunUnderTest("witness", plan, (), witness=True, attempts=[attempt])


def test_a_fork_that_has_the_command_line_of_its_parent_is_not_taken_for_it() -> None:
    code = "import os, sys; os.fork(); sys.stdin.read()"
    agent = subprocess.Popen([sys.executable, "-c", code, "zmqrl.agent", "run-1", "0"], stdin=subprocess.PIPE)
    with agent:
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        until(children.read_text)
        assert {place: process.pid for place, process in processes_below(os.getpid()).items()} == {"agent-0": agent.pid}
        agent.kill()


def test_a_launcher_that_has_not_begun_is_not_ended_by_the_signal_of_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_under_test, "END_S", 0.1)
    run = ended_with(Attempt(1, LEDGER, np.zeros(0, ROW), ROWS))
    run.plan = stand_in_plan(tmp_path, mode="async")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        run._process = launcher
        run.request_stop()
        launcher.communicate(b"\n")
    assert launcher.returncode == 0
