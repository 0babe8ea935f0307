"""Which processes are ended by the mark of another one. Real processes; the clock is the test's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.descriptor_limit import descriptor_limit
from tests.waiting import WAIT_S
from zmqrl.agent.run_processes import Orphans
from zmqrl.supervision.host_mark import PROCESS_VARIABLE

MARK = "orphans-1/far/worker-1/0"


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process with this mark; `trap` has it ignore SIGTERM."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: str, trap: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, PROCESS_VARIABLE: mark}
        command = ["sh", "-c", f"{trap} echo; exec sleep 600"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_mark_is_compared_whole(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    alike = [
        sleeper(mark)
        for mark in (
            "orphans-1/far/worker-1/1",
            "orphans-1/far/worker-1/00",
            "orphans-1/far/worker-11/0",
            "",
            f" {MARK}",
        )
    ]
    orphan, orphans = sleeper(MARK), Orphans(5.0)
    orphans.step(0.0)
    assert orphan.poll() is None, "no process has ended"
    orphans.end(MARK)
    orphans.step(1.0)
    assert orphan.wait(WAIT_S) == -signal.SIGTERM
    orphans.step(6.0)
    assert [process.poll() for process in alike] == [None] * len(alike)


def test_one_that_ignores_sigterm_is_killed_after_its_grace(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK, "trap '' TERM;"), Orphans(5.0)
    orphans.end(MARK)
    orphans.step(1.0)
    orphans.step(5.9)
    with pytest.raises(subprocess.TimeoutExpired):
        orphan.wait(0.2)
    orphans.step(6.0)
    assert orphan.wait(WAIT_S) == -signal.SIGKILL


def test_without_a_free_descriptor_the_next_step_tries_again(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK), Orphans(5.0)
    orphans.end(MARK)
    with descriptor_limit(3):
        orphans.step(1.0)
    assert orphan.poll() is None
    orphans.step(2.0)
    assert orphan.wait(WAIT_S) == -signal.SIGTERM


def test_one_that_is_stopped_is_killed_after_its_grace(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK), Orphans(5.0)
    os.kill(orphan.pid, signal.SIGSTOP)
    orphans.end(MARK)
    orphans.step(1.0)
    orphans.step(6.0)
    assert orphan.wait(WAIT_S) < 0
