"""The life of a host's processes: real ones, the stand-ins, and what broker and launcher are told of them."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import START, stand_in_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.agent.child_process import UNREPORTED_END, UNREQUESTED_END
from zmqrl.agent.data_plane import NoDataPlane
from zmqrl.agent.host_processes import HostProcesses
from zmqrl.agent.orphans import Orphans
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.process_events import ProcessEvents
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.agent.shutdown_policy import ShutdownMode
from zmqrl.config.plan import Boot, TcpListen
from zmqrl.entry import PARENT_VARIABLE
from zmqrl.messages.bus import Hanging, HostReport
from zmqrl.supervision.process_mark import mark_in, marked
from zmqrl.supervision.process_table import ProcessId, await_gone, kill

pytestmark = pytest.mark.whole
TURN_MS = 20


class Told(NoDataPlane):
    """Keeps what the broker would be told."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []

    def report(self, word: HostReport) -> None:
        self.reports.append(word)


class Host:
    """One host, and the loop around its processes; `local` has the learner, and with it the whole run."""

    def __init__(
        self,
        folder: Path,
        workers: tuple[int, ...],
        name: str = "far",
        listen: TcpListen | None = None,
        **behaviour: Any,
    ) -> None:
        plan = stand_in_plan(folder, workers=len(workers), **behaviour)
        self.log_dir, self.broker, self.events = folder / "logs", Told(), list[dict[str, Any]]()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._output, self._unread = AgentOutput(self._write), b""
        self.interpreter = sys.executable
        spawner = ProcessSpawner(self.log_dir, PARENT_VARIABLE, lambda role, run, i: [
            self.interpreter, START, f"zmqrl.{role}", run, str(i)
        ])  # fmt: skip
        boot = Boot("agent", 0, 0, name, plan, workers=workers, listen=listen)
        self.processes = HostProcesses(boot, spawner, self.broker, ProcessEvents(self._output, None))

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline, self.events
            self._turn()

    def _turn(self) -> None:
        poller = select.poll()
        for fd in self.processes.readable():
            poller.register(fd, select.POLLIN)
        for fd in self.processes.writable():
            poller.register(fd, select.POLLOUT)
        self.processes.handle({fd for fd, _ in poller.poll(TURN_MS)})
        self.processes.step(time.monotonic())
        self.processes.report()
        self._output.flush()
        self._receive()

    def _receive(self) -> None:
        try:
            self._unread += os.read(self._read, 1 << 20)
        except BlockingIOError:
            return
        *lines, self._unread = self._unread.split(b"\n")
        self.events += map(json.loads, lines)

    def judge(self, *hanging: Hanging) -> None:
        """Have the broker name these, once both workers are there to be judged."""
        self.until(lambda: self.report.ready == [0, 1])
        for each in hanging:
            self.processes.end_hanging(each)

    def events_of(self, name: str) -> list[dict[str, Any]]:
        """Fields of the events of this name, with role and index of those about a process."""
        flat = [{**event, **event["report"]} if "report" in event else event for event in self.events]
        return [event for event in flat if event["event"] == name]

    @property
    def report(self) -> HostReport:
        return self.broker.reports[-1]

    def close(self) -> None:
        self.processes.end(ShutdownMode.KILL)
        self.until(lambda: self.processes.is_over(time.monotonic()))
        for fd in (self._read, self._write):
            os.close(fd)


MakeHost = Callable[..., Host]


@pytest.fixture
def host_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeHost]:
    monkeypatch.setattr(Orphans, "end_all", lambda _: ([], []))  # else it ends all that the process of the tests has
    made: list[Host] = []

    def make(*workers: int, **behaviour: Any) -> Host:
        made.append(Host(tmp_path, workers, **behaviour))
        made[-1].processes.begin()
        return made[-1]

    yield make
    for host in made:
        host.close()


def test_a_reported_worker_is_ready(host_of: MakeHost) -> None:
    host = host_of(4, 5, says={"5": "silent"})
    host.until(lambda: host.report.ready == [4])
    assert host.report == HostReport("far", {4: 0, 5: 0}, [4], [], [4, 5], "")
    assert [event["index"] for event in host.events_of("started")] == [4, 5]


def test_memory_is_measured_once_a_process_is_ready(host_of: MakeHost) -> None:
    """A process may end before the first of the regular samples, as in a short run."""
    host = host_of(0)
    host.until(lambda: host.report.ready == [0])
    os.kill(next(event["pid"] for event in host.events_of("started")), signal.SIGKILL)
    host.until(lambda: bool(host.events_of("exit")))
    host.processes.finish()
    host.until(lambda: bool(host.events_of("finished")))
    (finished,) = host.events_of("finished")
    assert finished["peak_pss_mb"]["worker"] > 1.0


def test_a_stalled_worker_is_killed_once_after_its_stacks_are_requested(host_of: MakeHost) -> None:
    host = host_of(0, 1)
    host.judge(Hanging("worker", 1, 0, "stalled"), Hanging("worker", 1, 0, "lost"))
    host.until(lambda: host.report.alive == {0: 0, 1: 1})
    (exit_,) = host.events_of("exit")
    assert (exit_["index"], exit_["code"], exit_["expected"]) == (1, None, False)
    assert exit_["cause"] == "stalled: no progress for limits.stalled_after_s (300 s), killed"
    stacks = (host.log_dir / "far-worker-1.log").read_text()
    assert stacks.count("most recent call first") == 1
    assert "worker_role.py" in stacks
    host.until(lambda: host.report.ready == [0, 1])
    assert len(host.events_of("exit")) == 1


def test_a_judgement_of_another_spawn_or_role_or_host_kills_no_process(host_of: MakeHost) -> None:
    host = host_of(0, 1)
    host.judge(*(Hanging(*who, "lost") for who in (("worker", 1, 1), ("learner", 1, 0), ("worker", 2, 0))))
    over = time.monotonic() + 1.0  # longer than what faulthandler may take
    host.until(lambda: time.monotonic() > over)
    assert host.report.alive == {0: 0, 1: 0}
    assert not host.events_of("exit")
    (line,) = (host.log_dir / "far-worker-1.log").read_text().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d worker-1 \(pid \d+\) starts: zmqrl [\d.]+, Python [\d.]+, device cpu, 1 \w+",
        line,
    ), "and no stacks"


def test_a_worker_that_left_is_not_started_again(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "leaves"})
    host.until(lambda: len(host.events_of("exit")) == 1 and host.report.ready == [0])
    (exit_,) = host.events_of("exit")
    assert (exit_["index"], exit_["expected"], exit_["code"]) == (1, True, 0)
    assert host.processes.next_due(0.0) is None, "no restart is planned"
    assert not host.events_of("restart")
    assert not host.processes.ending


def test_a_worker_that_dies_silently_reaches_the_restart_limit(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "quits"})
    host.until(lambda: host.report.failed == [1])
    assert [event["index"] for event in host.events_of("restart")] == [1]
    assert [event["spawn"] for event in host.events_of("started") if event["index"] == 1] == [0, 1]
    assert host.report.workers == [0], "nobody waits for it"
    assert [event["cause"] for event in host.events_of("restart_limit_reached")] == ["exit code 7"]
    assert not host.processes.failed


def test_exit_code_0_without_a_request_is_named_and_is_no_reason_to_leave_it(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "returns"})
    host.until(lambda: host.report.failed == [1])
    exits = [(event["code"], event["expected"], event["cause"]) for event in host.events_of("exit")]
    assert exits == [(0, False, UNREQUESTED_END)] * 2


def test_a_learner_with_exit_code_0_that_did_not_report_its_end_has_failed(host_of: MakeHost) -> None:
    host = host_of(0, name="local", learner="returns")
    host.until(lambda: host.processes.failed)
    exits = [event for event in host.events_of("exit") if event["role"] == "learner"]
    assert [(event["code"], event["expected"], event["cause"]) for event in exits] == [(0, False, UNREPORTED_END)] * 2
    (failed,) = host.events_of("failed")
    assert failed["cause"] == f"learner-0 is not restarted: {UNREPORTED_END}"


def test_a_learner_that_reported_its_end_has_ended_the_run(host_of: MakeHost) -> None:
    host = host_of(0, name="local", train_s=0.1)
    host.until(lambda: host.processes.is_over(time.monotonic()))
    (exit_,) = [event for event in host.events_of("exit") if event["role"] == "learner"]
    assert (exit_["code"], exit_["expected"], exit_["cause"]) == (0, True, "exit code 0")
    assert not host.processes.failed


def simulators(pid: int) -> list[ProcessId]:
    """What the worker has started, once it runs; one of them is no longer below it."""

    def found() -> list[ProcessId]:
        mark = mark_in(pid)
        started = [process for process, its in marked() if its == mark and process.pid != pid]
        return [process for process in started if words_of(process) == b"sleep\x00600\x00"]

    until(lambda: len(found()) == 3, "three simulators")
    return found()


def words_of(process: ProcessId) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_what_an_env_of_a_killed_worker_has_started_ends_and_nothing_else(
    host_of: MakeHost, number: signal.Signals
) -> None:
    host = host_of(0, 1, worker="simulates")
    host.until(lambda: host.report.ready == [0, 1])
    pids = [event["pid"] for event in sorted(host.events_of("started"), key=lambda event: event["index"])]
    of_the_killed, of_the_other = map(simulators, pids)
    os.kill(pids[0], number)
    host.until(lambda: not await_gone(of_the_killed, 0.0))
    host.until(lambda: sorted(host.report.ready) == [0, 1])
    (successor,) = (event["pid"] for event in host.events_of("started") if event["spawn"] == 1)
    of_the_successor = simulators(successor)
    over = time.monotonic() + 1.5  # longer than the grace
    host.until(lambda: time.monotonic() > over)
    left = [*of_the_other, *of_the_successor]
    assert await_gone(left, 0.0) == left
    for process in left:
        kill(process)


def test_one_that_cannot_be_started_is_tried_again(host_of: MakeHost) -> None:
    host = host_of(0, restarts=3)
    host.until(lambda: host.report.ready == [0])
    host.interpreter = "/away/python"
    host.processes.set_workers((0, 1))
    host.until(lambda: len(host.events_of("restart")) == 2)
    cause = "cannot be started: [Errno 2] No such file or directory: '/away/python'"
    assert {(e["index"], e["pid"], e["expected"], e["cause"]) for e in host.events_of("exit")} == {(1, 0, False, cause)}
    host.interpreter = sys.executable
    host.until(lambda: host.report.ready == [0, 1])
    assert host.report.alive == {0: 0, 1: 2}


def test_a_worker_that_never_starts_has_failed(host_of: MakeHost) -> None:
    host = host_of(0, restarts=2)
    host.until(lambda: host.report.ready == [0])
    host.interpreter = "/away/python"
    host.processes.set_workers((0, 1))
    host.until(lambda: host.report.failed == [1])
    assert len(host.events_of("restart")) == 2
    (limit,) = host.events_of("restart_limit_reached")
    assert limit["cause"].startswith("cannot be started: ")
    assert not host.processes.failed


@pytest.mark.parametrize(("manner", "cause"), [
    ("fails", "KeyError: 'robot offline' (twice before its first step)"),
    ("raise", "EnvFault: step returned NaN"),
])  # fmt: skip
def test_only_what_is_raised_before_the_first_step_counts_as_the_same(
    host_of: MakeHost, manner: str, cause: str
) -> None:
    host = host_of(0, 1, says={"1": manner})
    host.until(lambda: host.report.failed == [1])
    assert [event["cause"] for event in host.events_of("restart_limit_reached")] == [cause]
    assert len(host.events_of("restart")) == 1
    tails = [event["log_tail"] for event in host.events_of("exit")]
    assert all(tail and not any("starts: zmqrl" in line for line in tail) for tail in tails)
    assert (host.log_dir / "far-worker-1.log").read_text().count("starts: zmqrl") == 2


def test_the_same_exception_of_all_workers_before_a_segment_ends_the_run(host_of: MakeHost) -> None:
    host = host_of(0, 1, 2, name="local", worker="barren", restarts=5)
    host.until(lambda: host.processes.failed)
    causes = [event["cause"] for event in host.events_of("restart_limit_reached")]
    assert causes == ["EnvFault: step returned NaN (twice before its first segment)"] * 3


def test_the_run_ends_with_the_last_of_the_workers_that_it_has_now(host_of: MakeHost) -> None:
    """`scale` has added three to the one of the plan, and removes one that has failed."""
    host = host_of(0, name="local", says={"0": "quits", "2": "quits"}, grace_s=1.0)
    host.processes.set_workers((0, 1, 2, 3))
    host.until(lambda: host.report.failed == [0, 2] and host.report.ready == [1, 3])
    assert not host.processes.failed
    host.processes.set_workers((0, 1))
    host.until(lambda: host.report.failed == [0] and host.report.alive == {1: 0})


@pytest.mark.parametrize(("name", "listen"), [("far", None), ("local", TcpListen())])
def test_a_host_whose_workers_all_failed_leaves_the_decision_to_the_launcher(
    host_of: MakeHost, name: str, listen: TcpListen | None
) -> None:
    """Other hosts may have workers by then, or get some."""
    host = host_of(0, 1, name=name, listen=listen, worker="quits")
    host.until(lambda: host.report.failed == [0, 1])
    assert not host.processes.failed and not host.events_of("failed")


def test_an_end_waits_for_no_restart(host_of: MakeHost) -> None:
    """One that was due would be due for ever, and the loop would not rest."""
    host = host_of(0, 1, says={"0": "deaf", "1": "quits"})
    host.until(lambda: bool(host.events_of("restart")) and host.report.ready == [0])
    host.processes.end(ShutdownMode.CLEAN)
    later = time.monotonic() + 60.0
    assert (host.processes.next_due(later) or 0.0) > later


def test_a_kill_is_not_put_off_by_a_drain(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "deaf"}, grace_s=60.0)
    host.judge(Hanging("worker", 1, 0, "stalled"))
    host.processes.set_workers((0,))
    host.until(lambda: host.report.alive == {0: 0})


def test_a_signal_without_a_name(host_of: MakeHost) -> None:
    host = host_of(0)
    host.until(lambda: host.report.ready == [0])
    os.kill(host.events_of("started")[0]["pid"], signal.SIGRTMIN + 1)
    host.until(lambda: bool(host.events_of("exit")))
    assert host.events_of("exit")[0]["cause"] == f"signal {signal.SIGRTMIN + 1}"


def test_what_is_held_no_longer_ends_and_what_is_new_starts(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "deaf"})
    host.until(lambda: host.report.ready == [0, 1])
    host.processes.set_workers((0, 2))
    assert host.report.workers == [0, 2]
    host.until(lambda: host.report.alive == {0: 0, 2: 0})
    (exit_,) = host.events_of("exit")
    assert (exit_["index"], exit_["cause"], exit_["expected"]) == (1, "signal SIGKILL", True)
    host.processes.set_workers(())
    assert not host.processes.ending, "not before they are gone"
    host.until(lambda: host.processes.is_over(time.monotonic()))
    assert not host.report.workers


def test_the_end_is_counted(host_of: MakeHost) -> None:
    host = host_of(0, 1, says={"1": "deaf"}, grace_s=3.0)
    host.until(lambda: host.report.ready == [0, 1])
    deaf = next(event["pid"] for event in host.events_of("started") if event["index"] == 1)
    host.processes.end(ShutdownMode.CLEAN)
    host.until(lambda: host.processes.is_over(time.monotonic()))
    host.processes.finish()
    host.until(lambda: len(host.events_of("finished")) == 1)
    (finished,) = host.events_of("finished")
    assert (finished["ended"], finished["killed"], finished["left"]) == (1, [f"far/worker-1 (pid {deaf})"], [])
    assert finished["peak_pss_mb"]["worker"] > 0
    assert not list(host.processes.readable())
