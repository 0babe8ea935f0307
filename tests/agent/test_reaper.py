"""Ending a run on a host without its launcher: real agents, real kills, and bystanders that must live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.system_plans import system_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.agent.reaper import reap
from zmqrl.agent.run_processes import AGENT, processes_of
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import EvaluatorSection
from zmqrl.errors import ConfigError
from zmqrl.messages.agent import AgentEvent, ProcessReport
from zmqrl.messages.agent import Started as ProcessStarted
from zmqrl.messages.lines import agent_event
from zmqrl.messages.orchestrator import Reaped
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.host_mark import HOST_VARIABLE, RUN_VARIABLE, pid_namespace
from zmqrl.supervision.host_template import TEMPLATE
from zmqrl.supervision.process_mark import mark_in, set_mark
from zmqrl.supervision.process_table import ProcessId, await_gone, children_of, identify, is_alive, kill
from zmqrl.wire.runtime_folder import run_folder_root

pytestmark = pytest.mark.whole
ENTRY = [sys.executable, "-m", "zmqrl.entry"]
NOTHING = Reaped()


class Started:
    """A host agent and what it started, as its events say."""

    def __init__(self, plan: RunPlan, host: str = "local", children: int = 2) -> None:
        self.run_id = plan.run_id
        self.process = subprocess.Popen(
            [*ENTRY, "zmqrl.agent", plan.run_id, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(to_json(Boot("agent", 0, 0, host, plan))).encode() + b"\n")
        self.process.stdin.flush()
        self.all = {"agent-0": _identity(self.process.pid)}
        while len(self.all) <= children:
            event = self._event()
            if isinstance(event, ProcessReport) and isinstance(event.report, ProcessStarted):
                identity = ProcessId(event.report.pid, event.report.start_time)
                self.all[f"{event.role}-{event.index}"] = identity
        self.all["template-0"] = until(self._template, "its template")

    def _template(self) -> ProcessId | None:
        for process in children_of(self.process.pid):
            if TEMPLATE.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                return process
        return None

    def _event(self) -> AgentEvent | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the agent ended"
        return agent_event(line) if line.startswith(b"{") else None

    def named(self) -> list[str]:
        return sorted(f"{name} (pid {process.pid})" for name, process in self.all.items())

    @property
    def is_whole(self) -> bool:
        return all(map(is_alive, self.all.values()))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _identity(pid: int) -> ProcessId:
    found = identify(pid)
    assert found is not None
    return found


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[str], RunPlan]:
    def make(name: str) -> RunPlan:
        return system_plan(
            tmp_path / name, "single", 0, steps=10**8, schedule_steps=10**8, evaluator=EvaluatorSection(episodes=1)
        )

    return make


@pytest.fixture
def begin() -> Iterator[Callable[..., Started]]:
    runs: list[Started] = []

    def start(*arguments: Any, **options: Any) -> Started:
        runs.append(Started(*arguments, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def bystander() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_one_of_two_runs_ends_and_the_other_does_not_notice(
    plan: Callable[[str], RunPlan], begin: Callable[..., Started]
) -> None:
    target_run, other = begin(plan("target_run")), begin(plan("other"))
    registered = {entry.run_id for entry in HostLock().entries()}
    assert {target_run.run_id, other.run_id} <= registered
    reaped = reap(target_run.run_id, 20.0)
    assert list(reaped.ended + reaped.killed) == target_run.named()
    assert reaped.left == ()
    assert other.is_whole
    assert target_run.run_id not in {entry.run_id for entry in HostLock().entries()}
    assert reap(target_run.run_id) == NOTHING
    assert reap(other.run_id, 0.0).left == ()
    assert not await_gone(other.all.values(), 0.0)


def test_an_agent_that_does_not_answer_is_killed_with_all_it_holds(
    plan: Callable[[str], RunPlan], begin: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is time between one kill and the next: what an agent's death takes along was not asked."""

    def kill_slowly(process: ProcessId) -> bool:
        killed = kill(process)
        time.sleep(0.05)  # the kernel's time to end what hangs on it
        return killed

    monkeypatch.setattr("zmqrl.agent.reaper.kill", kill_slowly)
    stopped = begin(plan("stopped"))
    os.kill(stopped.process.pid, signal.SIGSTOP)
    folder = run_folder_root() / stopped.run_id
    folder.mkdir(parents=True)
    reaped = reap(stopped.run_id, 0.2)
    assert (reaped.ended, list(reaped.killed), reaped.left) == ((), stopped.named(), ())
    assert not await_gone(stopped.all.values(), 0.0)
    assert stopped.run_id not in {entry.run_id for entry in HostLock().entries()}
    assert not folder.exists()


def test_what_outlived_a_killed_agent_is_found_by_its_mark(
    plan: Callable[[str], RunPlan], begin: Callable[..., Started], bystander: Callable[..., subprocess.Popen[bytes]]
) -> None:
    run = begin(plan("killed"))
    learner = run.all["learner-0"].pid
    environment = dict(
        word.split("=", 1) for word in Path(f"/proc/{learner}/environ").read_text().split("\0") if "=" in word
    )
    assert environment[RUN_VARIABLE] == run.run_id
    daemons = [bystander("sleep", "600", env=env, start_new_session=True) for env in (environment, {})]
    set_mark(daemons[1].pid, mark_in(learner))
    run.close()
    assert not await_gone(run.all.values(), WAIT_S)
    assert [daemon.poll() for daemon in daemons] == [None, None]
    assert reap(run.run_id, 0.0, "elsewhere").killed == (f"stray (pid {daemons[0].pid})",), "its host is not marked"
    assert reap(run.run_id, 0.0, "local").killed == (f"stray (pid {daemons[1].pid})",)
    assert [daemon.wait(WAIT_S) for daemon in daemons] == [-signal.SIGKILL] * 2


def test_a_process_without_an_agent_is_terminated_directly(bystander: Callable[..., subprocess.Popen[bytes]]) -> None:
    lone = bystander(*ENTRY, "zmqrl.worker", "lone-1", "3")
    assert reap("lone-1", 20.0) == Reaped(ended=(f"worker-3 (pid {lone.pid})",))
    assert lone.wait(WAIT_S) == -signal.SIGTERM


def test_similar_processes_are_kept(bystander: Callable[..., subprocess.Popen[bytes]]) -> None:
    script = "import sys; sys.stdin.read()"
    alike = [
        bystander(*ENTRY, "zmqrl.worker", "run-12", "0"),
        bystander(sys.executable, "-c", script, "zmqrl.worker", "run-1", "0"),
        bystander(sys.executable, "-c", script, "-m", "zmqrl.entry", "zmqrl.agent", "run-1", "0"),
        bystander("bash", "-c", "read; : python -m zmqrl.entry zmqrl.worker run-1 0"),
        bystander("sleep", "600", env={RUN_VARIABLE: "run-12", "NOTE": f"{RUN_VARIABLE}=run-1"}),
    ]
    assert reap("run-1", 0.0) == NOTHING
    assert [process.poll() for process in alike] == [None] * len(alike)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")
def test_another_users_process_is_not_ours_to_end(bystander: Callable[..., subprocess.Popen[bytes]]) -> None:
    theirs = bystander("sleep", "600", env={RUN_VARIABLE: "run-2"}, user=65534)
    assert reap("run-2", 0.0) == NOTHING
    assert theirs.poll() is None


def test_of_two_hosts_that_are_one_machine_one_can_be_ended(
    plan: Callable[[str], RunPlan], begin: Callable[..., Started]
) -> None:
    shared = plan("shared")
    first, second = begin(shared), begin(shared, host="node02", children=0)

    def registered() -> bool:
        assert second.process.poll() is None
        return any(entry.pid == second.process.pid for entry in HostLock().entries())

    until(registered, "its entry")
    assert list(processes_of(shared.run_id).values()).count(AGENT) == 2
    reaped = reap(shared.run_id, 20.0, "node02")
    assert list(reaped.ended) == second.named()
    assert first.is_whole
    assert reap(shared.run_id, 0.0).left == ()


def test_the_command_prints_what_it_did(bystander: Callable[..., subprocess.Popen[bytes]]) -> None:
    lone = bystander(*ENTRY, "zmqrl.learner", "lone-2", "0")
    command = [sys.executable, "-m", "zmqrl.agent.reaper", "lone-2", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"ended": [f"learner-0 (pid {lone.pid})"], "killed": [], "left": []}


@pytest.mark.parametrize("arguments", [(), ("run", "soon"), ("run", "nan"), ("run", "-1"), ("../x",), ("..",), ("",)])
def test_arguments_that_mean_nothing_are_refused(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "zmqrl.agent.reaper", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_run_id_is_never_a_path() -> None:
    with pytest.raises(ConfigError):
        reap("../elsewhere")


def test_a_wrap_is_reaped_from_outside_and_only_of_its_host_and_machine(
    bystander: Callable[..., subprocess.Popen[bytes]],
) -> None:
    """Real pid namespaces: what runs there is found by its mark, and killed by its pid here."""
    here = pid_namespace()
    within = ["sh", "-c", "sleep 600 & sleep 600; true"]
    started = {}
    for name, mark in {"ours": f"h0@{here}", "neighbour": f"h1@{here}", "container": "h0@pid:[1]"}.items():
        marks = ["env", f"{RUN_VARIABLE}=run-9", f"{HOST_VARIABLE}={mark}"]
        wrap = ["unshare", "-p", "-f", "--mount-proc", "--kill-child"]
        command = [*wrap, *marks, *within] if name == "container" else [*marks, *wrap, *within]
        started[name] = bystander(*command)
    if started["ours"].poll() is not None:
        pytest.skip("no pid namespaces here")
    trees = {name: until(partial(_tree, process.pid, 4), "the tree") for name, process in started.items()}
    done = reap("run-9", 0.1, "h0")
    assert len(done.ended) + len(done.killed) == 4 and not done.left, done
    assert not any(map(is_alive, trees["ours"]))
    assert all(map(is_alive, trees["neighbour"])) and all(map(is_alive, trees["container"]))
    done = reap("run-9", 0.1)
    assert not any(map(is_alive, trees["neighbour"])) and all(map(is_alive, trees["container"]))
    for process in trees["container"]:
        kill(process)
    await_gone(trees["container"], WAIT_S)


def _tree(top: int, count: int) -> list[ProcessId] | None:
    """Wrapper, process 1 of its namespace, and its children; once there are so many."""
    found = [top]
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        found += map(int, children.read_text().split())
    return [_identity(pid) for pid in found] if len(found) == count else None
