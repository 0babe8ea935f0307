"""Lines of an agent that are no events: refused, counted, reported, and the events after them still arrive."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import call, create_autospec

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.launch.run.boots import boots
from zmqrl.launch.run.events import take
from zmqrl.launch.run.state import RunState
from zmqrl.messages.agent import HostFinished, LeaseLost
from zmqrl.messages.command import Lease, Stop
from zmqrl.messages.lines import command
from zmqrl.messages.orchestrator import AgentExited, Event, Handshake, HostUnusable, LinesRefused
from zmqrl.orchestrators import agents_orchestrator
from zmqrl.orchestrators.agent import Agent
from zmqrl.orchestrators.base import HostEvent
from zmqrl.orchestrators.handshake import SENTINEL, versions
from zmqrl.orchestrators.local import LocalOrchestrator

BAD = [
    "{",
    '{"event": "process", "role": "learner", "index": 0, "report": {"event": "metrics"}}',
    '{"event": "agent_exit", "code": 0}',
    "{}",
    '{"a": 1}',
]
FINISHED = {
    "event": "finished",
    "peak_pss_mb": {},
    "ended": 0,
    "killed": [],
    "left": [],
    "ledger": None,
    "final_stopped": False,
}

Received = Callable[[list[str]], list[HostEvent]]


@pytest.fixture
def received(tmp_path: Path) -> Iterator[Received]:
    """What the launcher receives from an agent that writes these lines and ends."""
    orchestrator: list[LocalOrchestrator] = []

    def listen(lines: list[str]) -> list[HostEvent]:
        code = f"print({chr(10).join(lines)!r}, flush=True)"
        orchestrator.append(LocalOrchestrator(agent_command=(sys.executable, "-c", code)))
        orchestrator[0].deploy(boots(stand_in_plan(tmp_path / "run")))
        events: list[HostEvent] = []
        deadline = time.monotonic() + WAIT_S
        while not any(isinstance(event.event, AgentExited) for event in events):
            assert time.monotonic() < deadline, events
            events += orchestrator[0].monitor(0.1)
        return events

    yield listen
    for one in orchestrator:
        one.undeploy(0.1)


def test_bad_lines_are_counted_and_the_good_ones_arrive(received: Received, tmp_path: Path) -> None:
    handshake = json.dumps({"versions": versions(), "pid": 1, "time": time.time(), "later": True})
    events = received([SENTINEL + handshake, *BAD, json.dumps(FINISHED)])
    refused = [event.event for event in events if isinstance(event.event, LinesRefused)]
    kinds = [type(event.event) for event in events if not isinstance(event.event, LinesRefused)]
    assert kinds == [Handshake, HostFinished, AgentExited]
    counts = refused[-1].counts
    assert counts == {"not JSON": 1, "fields": 1, "unknown event": 3}
    state = RunState(stand_in_plan(tmp_path / "run"))
    for event in events:
        take(state, event)
    assert state.refused_messages == counts
    causes = [problem.cause for problem in state.problems]
    assert causes == ["rejected 1 x not JSON", "rejected 1 x fields", "rejected 1 x unknown event"], "once per reason"
    assert {problem.where for problem in state.problems} == {"the launcher, messages from local/agent-0"}


@pytest.mark.parametrize("handshake", ["{", "[]", "{}", '{"versions": 7, "pid": 1, "time": 1.0}'])
def test_an_invalid_handshake_is_a_failure_of_the_host(received: Received, handshake: str) -> None:
    failed, end = received([SENTINEL + handshake])
    assert isinstance(failed.event, HostUnusable) and isinstance(end.event, AgentExited)
    assert "is not a handshake" in failed.event.cause and failed.event.fix


def test_the_end_of_an_agent_that_has_a_successor_is_not_reported(tmp_path: Path) -> None:
    lines = SENTINEL + json.dumps({"versions": versions(), "pid": 1, "time": time.time()})
    lost = json.dumps({"event": "lease_lost", "source": "broker"})
    code = f"print({lines!r}, flush=True); input(); input(); print({lost!r}, flush=True)"
    orchestrator = LocalOrchestrator(agent_command=(sys.executable, "-c", code))
    found: list[type[Event]] = []

    def received(count: int) -> bool:
        found.extend(type(event.event) for event in orchestrator.monitor(0.1))
        return len(found) >= count

    try:
        agents = []
        for number in (1, 2):
            orchestrator.deploy(boots(stand_in_plan(tmp_path / "run")))
            agents += orchestrator.agents.values()
            until(lambda: received(number))  # noqa: B023
        agents[0].send(Lease())
        orchestrator._threads[0].join(WAIT_S)
        assert not orchestrator._threads[0].is_alive()
        agents[1].send(Lease())
        until(lambda: received(4))
        assert (found, orchestrator.monitor(0.1)) == ([Handshake, Handshake, LeaseLost, AgentExited], [])
    finally:
        orchestrator.undeploy(0.1)
        agents[0].end()


@pytest.mark.parametrize("is_deployed", [False, True])
def test_a_stop_before_the_handshake_follows_the_boot(tmp_path: Path, is_deployed: bool) -> None:
    introduced, second = tmp_path / "introduced", tmp_path / "second"
    lines = SENTINEL + json.dumps({"versions": versions(), "pid": 1, "time": time.time()})
    code = (
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(introduced)!r}).exists(): time.sleep(0.01)\n"
        f"print({lines!r}, flush=True)\n"
        f"sys.stdin.readline()\npathlib.Path({str(second)!r}).write_text(sys.stdin.readline())"
    )
    orchestrator = LocalOrchestrator(agent_command=(sys.executable, "-c", code))
    try:
        deployed = boots(stand_in_plan(tmp_path / "run"))
        if is_deployed:
            orchestrator.deploy(deployed)
        orchestrator.command("local", Stop())
        if not is_deployed:
            orchestrator.deploy(deployed)
        introduced.touch()
        until(lambda: second.exists() and second.read_text() != "", "the second line", WAIT_S)
        assert isinstance(command(second.read_bytes()), Stop)
    finally:
        orchestrator.undeploy(0.1)


def test_an_agent_that_takes_no_command_costs_no_other_its_lease() -> None:
    orchestrator, agents = LocalOrchestrator(), [create_autospec(Agent, instance=True, host=host) for host in "abc"]
    orchestrator.agents = {agent.host: agent for agent in agents}
    for agent in agents[:2]:
        agent.send.side_effect = KeyError(agent.host)
    with pytest.raises(KeyError, match="a"):
        orchestrator.command(None, Lease())
    assert [agent.send.call_args_list for agent in agents] == [[call(Lease())]] * 3


def test_calls_side_by_side_are_made_one_by_one_when_the_interpreter_exits() -> None:
    code = "import atexit\nfrom zmqrl.orchestrators.agents_orchestrator import in_parallel\n"
    code += "atexit.register(lambda: print(in_parallel([lambda: 1, lambda: 2])))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


def test_an_agent_without_its_boot_has_no_time_to_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun does not end on a signal that comes before it knows the number of its job."""
    monkeypatch.setattr(agents_orchestrator, "KILL_WAIT_S", 0.1)
    deaf = tmp_path / "deaf"
    code = (
        "import pathlib, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(deaf)!r}).touch()\nsignal.pause()"
    )
    orchestrator = LocalOrchestrator(agent_command=(sys.executable, "-c", code))
    orchestrator.deploy(boots(stand_in_plan(tmp_path / "run")))
    until(deaf.exists, "the agent has begun", WAIT_S)
    assert orchestrator.undeploy(3600.0).left == ()
