"""What the start-up files of a login shell print, and when they do not end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.waiting import until
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import LimitsSection
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import Event, Handshake, HostUnusable
from zmqrl.orchestrators.agent import Agent
from zmqrl.orchestrators.handshake import SENTINEL, versions
from zmqrl.orchestrators.local import LocalAgent, LocalOrchestrator
from zmqrl.orchestrators.on_hosts import report_in
from zmqrl.ssh.shell import after_mark

HANDSHAKE = SENTINEL + json.dumps({"versions": versions(), "pid": 1, "time": time.time()})


class BehindShell(LocalAgent):
    """Started by this process, as if a login shell were in between."""

    no_handshake = Agent.no_handshake


class Shells(LocalOrchestrator):
    """Of one such agent."""

    def __init__(self, command: tuple[str, ...]) -> None:
        super().__init__()
        self._command = command

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        for boot in boots.values():
            self.adopt(BehindShell(boot, self.warn, self._command))


class Agents:
    """One agent whose command prints `text`, and sleeps."""

    def __init__(self, plan: RunPlan, text: str) -> None:
        self._agents = Shells(("sh", "-c", 'printf %s "$0"; exec sleep 600', text))
        self._agents.deploy(boots(plan))
        self.events: list[Event] = []

    def one(self, kind: type) -> bool:
        self.events += [event.event for event in self._agents.monitor(0.05)]
        return any(isinstance(event, kind) for event in self.events)

    def close(self) -> None:
        self._agents.undeploy(0.1)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agents]]:
    made: list[Agents] = []
    yield made
    monkeypatch.setattr("zmqrl.orchestrators.agents_orchestrator.KILL_WAIT_S", 0.1)  # `sleep` carries out no command
    for one in made:
        one.close()


def plan(tmp_path: Path, start_s: float) -> RunPlan:
    made = stand_in_plan(tmp_path / "run")
    limits = LimitsSection(start_s=start_s)
    return replace(made, config=replace(made.config, limits=limits))


@pytest.mark.parametrize("before", ["", "banner\n", "no newline", "\x1b]0;title\x07", "two\nlines\r\n$ "])
def test_the_handshake_may_follow_other_text(agents: list[Agents], tmp_path: Path, before: str) -> None:
    agents.append(Agents(plan(tmp_path, 60.0), f"{before}{HANDSHAKE}\n"))
    until(lambda: agents[0].one(Handshake), "the handshake")


def test_a_host_without_handshake_has_failed_and_its_output_is_quoted(agents: list[Agents], tmp_path: Path) -> None:
    agents.append(Agents(plan(tmp_path, 2.0), "Welcome\n\x1b]0;title\x07\x1b[1mKerberos password: "))
    begun = time.monotonic()
    until(lambda: agents[0].one(HostUnusable), "the end of the wait")
    assert time.monotonic() - begun > 1.9
    failures = [event for event in agents[0].events if isinstance(event, HostUnusable)]
    assert failures[0].cause == (
        "no handshake of the host agent within limits.start_s (2 s); "
        "its login shell printed: Welcome / Kerberos password:"
    )
    assert ".bashrc" in failures[0].fix
    assert len(failures) == 1


def test_a_host_that_prints_nothing_has_failed_too(agents: list[Agents], tmp_path: Path) -> None:
    agents.append(Agents(plan(tmp_path, 0.3), ""))
    until(lambda: agents[0].one(HostUnusable), "the end of the wait")
    assert "its login shell printed nothing" in str(agents[0].events)


def test_a_report_may_follow_text_without_an_end_of_line() -> None:
    report = b'{"ended": [], "killed": [], "left": []}'
    assert report_in(b"quota: 80%\n" + report) == report_in(report) is not None
    assert after_mark("quota: 80%MARK x", "MARK ") == "x"
    assert after_mark("quota: 80%", "MARK ") is None
