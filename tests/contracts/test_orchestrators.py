"""One suite for every kind of orchestrator, over stand-in processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import START, stand_in_plan
from zmqrl.config.plan import Boot
from zmqrl.launch.boots import boots
from zmqrl.messages.agent import AgentExited, Exited, Finished, Handshake, Ready, Started
from zmqrl.orchestrators.base import HostEvent, Orchestrator
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.plugins import modules
from zmqrl.supervision.process_table import ProcessId, await_gone

pytestmark = pytest.mark.whole
MAKERS = {"local": lambda: LocalOrchestrator(agent_command=(sys.executable, START))}
WAIT_S = 15.0


class Deployed:
    """An orchestrator that runs, and what it told."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator
        self.events: list[HostEvent] = []

    def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        deadline = time.monotonic() + WAIT_S
        while len(found := [event.event for event in self.events if isinstance(event.event, kind)]) < count:
            assert time.monotonic() < deadline, self.events
            self.events += self.orchestrator.monitor(0.1)
        return found

    def processes(self) -> list[ProcessId]:
        started = [event.event for event in self.events]
        return [ProcessId(event.pid, event.start_time) for event in started if isinstance(event, Started)]


@pytest.fixture(params=[kind for kind in modules("zmqrl.orchestrators", Orchestrator) if kind in MAKERS])
def deployed(request: pytest.FixtureRequest) -> Iterator[Deployed]:
    held = Deployed(MAKERS[request.param]())
    yield held
    held.orchestrator.undeploy(0.1)


def boots_of(tmp_path: Path, **behaviour: Any) -> dict[str, Boot]:
    return boots(stand_in_plan(tmp_path / "run", **behaviour))


def test_events_come_in_order_and_the_agents_end_is_the_last(deployed: Deployed, tmp_path: Path) -> None:
    deployed.orchestrator.deploy(boots_of(tmp_path, train_s=0.2))
    (end,) = deployed.until(AgentExited)
    kinds = [type(event.event) for event in deployed.events]
    assert kinds[:2] == [Handshake, Started]
    assert kinds[-2:] == [Finished, AgentExited]
    assert end.code == 0
    teardown = deployed.orchestrator.undeploy(1.0)
    assert (teardown.ended, teardown.killed, teardown.left) == (5, (), ())


def test_undeploy_stops_a_run_that_goes_on(deployed: Deployed, tmp_path: Path) -> None:
    deployed.orchestrator.deploy(boots_of(tmp_path))
    deployed.until(Ready, 5)
    teardown = deployed.orchestrator.undeploy(5.0)
    assert (teardown.ended, teardown.killed, teardown.left) == (5, (), ())
    assert not await_gone(deployed.processes(), 0.0)


def test_undeploy_names_what_it_had_to_kill(deployed: Deployed, tmp_path: Path) -> None:
    deployed.orchestrator.deploy(boots_of(tmp_path, worker="deaf"))
    deployed.until(Ready, 5)
    teardown = deployed.orchestrator.undeploy(0.3)
    assert any("worker-0 (pid" in killed for killed in teardown.killed)
    assert teardown.left == ()
    assert not await_gone(deployed.processes(), 0.0)


def test_undeploy_verifies_after_the_agent_was_killed(deployed: Deployed, tmp_path: Path) -> None:
    deployed.orchestrator.deploy(boots_of(tmp_path, worker="litter"))
    deployed.until(Ready, 5)
    time.sleep(0.2)
    (agent,) = deployed.until(Handshake)
    os.kill(agent.pid, signal.SIGKILL)
    (end,) = deployed.until(AgentExited)
    assert end.code == -signal.SIGKILL
    teardown = deployed.orchestrator.undeploy(1.0)
    assert teardown.left == ()
    assert len([killed for killed in teardown.killed if "stray" in killed]) == 2
    assert not await_gone(deployed.processes(), 0.0)


def test_a_killed_worker_is_started_again(deployed: Deployed, tmp_path: Path) -> None:
    deployed.orchestrator.deploy(boots_of(tmp_path))
    deployed.until(Ready, 5)
    victim = next(e for e in deployed.events if isinstance(e.event, Started) and e.role == "worker")
    os.kill(victim.event.pid, signal.SIGKILL)
    deployed.until(Started, 6)
    again = [e for e in deployed.events if isinstance(e.event, Started)][-1]
    assert (again.process, again.event.spawn) == (victim.process, 1)
    (died,) = deployed.until(Exited)
    assert (died.cause, died.expected) == ("signal SIGKILL", False)
    deployed.until(Ready, 6)


def test_undeploy_before_and_twice_is_no_error(deployed: Deployed, tmp_path: Path) -> None:
    assert deployed.orchestrator.undeploy(0.1).left == ()
    deployed.orchestrator.deploy(boots_of(tmp_path, train_s=0.1))
    deployed.until(AgentExited)
    deployed.orchestrator.undeploy(0.1)
    assert deployed.orchestrator.undeploy(0.1).left == ()
