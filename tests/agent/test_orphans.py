"""Which processes are ended for another one, and at the end of the run. Real processes; the clock is the test's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.agent.plans import START, stand_in_plan
from tests.support.descriptor_limit import descriptor_limit
from tests.support.running import environment
from tests.support.waiting import WAIT_S, until
from zmqrl.agent.orphans import Orphans
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot, TcpListen
from zmqrl.supervision.process_mark import marked_by_host, process_mark, set_mark
from zmqrl.supervision.process_table import await_gone
from zmqrl.supervision.restarts import ProcessSlot

MARK = process_mark("orphans-1", "far", 1)
ENDED = Mock(mark=MARK, slot=ProcessSlot("worker", 1))


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process with this mark and without an environment; `trap` has it ignore SIGTERM."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: int, trap: str = "") -> subprocess.Popen[bytes]:
        command = ["sh", "-c", f"{trap} echo; exec sleep 600"]
        process = subprocess.Popen(command, env={}, stdout=subprocess.PIPE, start_new_session=True)
        set_mark(process.pid, mark)
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
            process_mark("orphans-1", "far", 0),
            process_mark("orphans-1", "far", 11),
            process_mark("orphans-1", "near", 1),
            process_mark("orphans-11", "far", 1),
            0,
            1,
        )
    ]
    orphan, orphans = sleeper(MARK), Orphans(5.0, {})
    orphans.step(0.0)
    assert orphan.poll() is None, "no process has ended"
    orphans.end(ENDED)
    orphans.step(1.0)
    assert orphan.wait(WAIT_S) == -signal.SIGTERM
    orphans.step(6.0)
    assert [process.poll() for process in alike] == [None] * len(alike)


def test_one_that_ignores_sigterm_is_killed_after_its_grace(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK, "trap '' TERM;"), Orphans(5.0, {})
    orphans.end(ENDED)
    orphans.step(1.0)
    orphans.step(5.9)
    with pytest.raises(subprocess.TimeoutExpired):
        orphan.wait(0.2)
    orphans.step(6.0)
    assert orphan.wait(WAIT_S) == -signal.SIGKILL


def test_without_a_free_descriptor_the_next_step_tries_again(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK), Orphans(5.0, {})
    orphans.end(ENDED)
    with descriptor_limit(3):
        orphans.step(1.0)
    assert orphan.poll() is None
    orphans.step(2.0)
    assert orphan.wait(WAIT_S) == -signal.SIGTERM


def test_one_that_is_stopped_is_killed_after_its_grace(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan, orphans = sleeper(MARK), Orphans(5.0, {})
    os.kill(orphan.pid, signal.SIGSTOP)
    orphans.end(ENDED)
    orphans.step(1.0)
    orphans.step(6.0)
    assert orphan.wait(WAIT_S) < 0


def test_orphans_are_reaped_and_the_exit_codes_of_children_stay() -> None:
    """In a process of its own, since it adopts orphans. The orphan has a session of its own and no environment."""
    script = """
import os, subprocess
from types import SimpleNamespace
from tests.support.waiting import until
from zmqrl.agent.orphans import Orphans
from zmqrl.supervision.own_session import adopt_orphans
from zmqrl.supervision.process_mark import process_mark, set_mark
from zmqrl.supervision.process_table import identify

def children():
    return set(map(int, open(f"/proc/self/task/{os.getpid()}/children").read().split()))

def start(command):
    process = subprocess.Popen(["sh", "-c", f"read line; {command}"], stdin=subprocess.PIPE)
    set_mark(process.pid, process_mark("r", "h", process.pid))
    return process

adopt_orphans()
orphans = Orphans(1.0, own := {})
child, leaver = start("exit 7"), start("env -i setsid sleep 0 <&- >&- & exit 0")
own["worker"] = SimpleNamespace(identity=identify(child.pid))
leaver.communicate(b"\\n")
assert leaver.returncode == 0
until(lambda: orphans.step(0.0) or children() == {child.pid}, "the end of the orphan")
child.stdin.close()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
orphans.step(0.0)
assert child.wait() == 7
orphans.step(0.0)
"""
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True, timeout=WAIT_S)


@pytest.mark.whole
@pytest.mark.parametrize("last", [b'{"command": "stop"}\n', b'{"command": "kill"}\n', b""])
def test_at_the_end_all_that_was_left_is_killed_and_named(tmp_path: Path, last: bytes) -> None:
    """Of a real agent: also the daemon without an environment in a session of its own, and what a dead worker left."""
    plan = stand_in_plan(tmp_path / "run", workers=2, worker="simulates", grace_s=60.0, restarts=0)
    boot = Boot("agent", 0, 0, "local", plan, workers=(0, 1), listen=TcpListen())
    with subprocess.Popen(
        [sys.executable, START, "zmqrl.agent", plan.run_id, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(json.dumps(to_json(boot)).encode() + b"\n")
        agent.stdin.flush()
        workers: dict[int, int] = {}
        ready = 0
        while ready < 2:
            line = agent.stdout.readline()
            assert line, "it ended"
            event = json.loads(line) if line.startswith(b"{") else {}
            report = event.get("report", {}).get("event") if event.get("role") == "worker" else None
            ready += report == "ready"
            if report == "started":
                workers[event["index"]] = event["report"]["pid"]
        os.kill(workers[0], signal.SIGKILL)
        while b'"exit"' not in agent.stdout.readline():
            pass
        # broker, learner, evaluator, the other worker with its three, and the deaf one of the dead worker
        until(lambda: len(list(marked_by_host(plan.run_id, "local"))) == 8)
        out, _ = agent.communicate(last, WAIT_S)
        finished = json.loads(out.splitlines()[-1])
    strays = [who for who in finished["killed"] if who.startswith("local/stray (pid ")]
    assert len(strays) == 4, "the deaf one of the dead worker, and three of the other"
    assert finished["left"] == []
    assert not await_gone(marked_by_host(plan.run_id, "local"), 0.0)
