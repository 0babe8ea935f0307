"""Another address of a machine of the run, and hosts that have become silent."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_rejoining import Run
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection, LimitsSection
from zmqrl.launch.run import actions as act
from zmqrl.launch.run.addresses import AddressChange, AddressWatch
from zmqrl.launch.run.host_records import SILENT_S
from zmqrl.launch.status import host_status
from zmqrl.messages.agent import Alive
from zmqrl.orchestrators.base import HostEvent

NOW = 1_700_000_000.0
OTHERS = {"local": HostSection(workers=1), "b": HostSection(workers=2), "c": HostSection(workers=2)}


def test_an_address_that_replaces_another_is_a_change_once() -> None:
    watch = AddressWatch()
    found = [
        watch.check(addresses)
        for addresses in (["a"], ["a"], ["a", "docker"], ["docker"], [], ["docker", "a"], ["a"], ["b"], ["b"])
    ]
    assert found == [None] * 7 + [AddressChange(["a", "docker"], ["b"]), None], "without another, it may return"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """b and c have joined at 10.0.0.1."""
    run = Run(tmp_path, hosts=OTHERS)
    run.state.hosts["b"].address = "10.0.0.1"
    return run


def listen(run: Run, *addresses: str) -> None:
    run.tell("local", "listening", addresses=list(addresses), ports=(1, 2, 3), token="t", serial=run.allowed().serial)


def test_hosts_that_have_joined_at_an_address_that_is_gone_are_connected_to_again(run: Run) -> None:
    listen(run, "10.0.0.1", "fd00::1")
    listen(run, "10.0.0.1", "fd00::2")
    assert run.state.hosts["b"].state == "ready", "b does not use the address that is gone"
    listen(run, "10.0.0.9", "fd00::2")
    b = run.state.hosts["b"]
    assert b.state == "lost" and b.cause == "the address of this machine has changed: 10.0.0.1 -> 10.0.0.9"
    deployed = len(run.orchestrator.deployed)
    for second in range(3):
        run.step(101.0 + second)
    assert [list(boots) for boots in run.orchestrator.deployed[deployed:]] == [["b"]]


def tick(run: Run, at: float, *addresses: str) -> None:
    run.machine.handle(act.TimePassed(datetime.fromtimestamp(at), addresses=addresses), at - NOW)


def heard(run: Run, host: str, at: float) -> None:
    run.machine.handle(HostEvent(host, Alive(), at=at), at - NOW)


def test_hosts_that_are_silent_since_the_launchers_machine_has_another_address(run: Run) -> None:
    b = run.state.hosts["b"]
    tick(run, NOW, "10.0.0.1")
    heard(run, "b", NOW + 0.9)
    tick(run, NOW + 1, "10.0.0.2")
    tick(run, NOW + 2, "10.0.0.2")
    assert b.state == "ready", "it may be connected by another address"
    tick(run, NOW + 3, "10.0.0.2")
    assert b.state == "lost" and "10.0.0.1 -> 10.0.0.2" in b.cause
    assert any("10.0.0.1 -> 10.0.0.2" in str(problem) for problem in run.state.problems)


def test_a_host_that_sends_on_keeps_its_connection(run: Run) -> None:
    tick(run, NOW, "10.0.0.1")
    for second in range(1, 9):
        heard(run, "b", NOW + second - 0.5)
        tick(run, NOW + second, "10.0.0.2")
    tick(run, NOW + 300, "10.0.0.2")
    assert run.state.hosts["b"].state == "ready", "a later silence has another cause"


def shown(run: Run, at: float, **changed: Any) -> str:
    return str(host_status(replace(run.state.hosts["b"], **changed), at)["state"])


def test_a_host_without_messages_is_silent_and_not_ready(run: Run, tmp_path: Path) -> None:
    heard(run, "b", NOW)
    assert shown(run, NOW + SILENT_S - 0.1) == "ready" and shown(run, NOW + SILENT_S) == "silent"
    assert shown(run, NOW + SILENT_S, state="lost") == "lost"
    heard(run, "b", NOW + 60)
    assert shown(run, NOW + 61) == "ready"
    slow = Run(tmp_path, limits=LimitsSection(start_s=1e6, heartbeat_s=10.0))
    heard(slow, "b", NOW)
    assert shown(slow, NOW + 29) == "ready" and shown(slow, NOW + 30) == "silent"
