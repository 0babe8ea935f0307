"""The first words to a far agent."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from zmqrl.agent.process import by_own_clock
from zmqrl.config.codec import from_json, replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection, NetworkSection
from zmqrl.errors import HostFailed
from zmqrl.messages.command import Lease
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.handshake import versions
from zmqrl.orchestrators.shell_orchestrator import ShellAgent
from zmqrl.ssh.connection import Connection


class Far:
    """A connection and its channel; in the middle of each line the main thread has a lease to send."""

    agent: ShellAgent
    unfinished = b""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.code: int | None = None
        self._writes = False

    def start(self, command: str, log: Path) -> Far:
        return self

    def exit_status(self, timeout_s: float) -> int | None:
        return self.code

    def write(self, line: bytes) -> None:
        if not self._writes:
            self._writes = True
            self.agent.send(Lease())
            self._writes = False
        self.lines.append(json.loads(line))


def agent_of(boot: Boot, shell: Any, wrap: str | None = None) -> ShellAgent:
    """Of a host without other settings."""
    access = HostAccess(NO_KEYS, replace(boot.plan.config, hosts={"far": HostSection(wrap=wrap)}))
    return ShellAgent(boot, lambda host, text: None, shell, access, Path(boot.plan.run_dir) / "log")


def test_a_remote_host_with_another_processor_receives_nothing(tmp_path: Path) -> None:
    far = Far()
    far.agent = agent_of(Boot("agent", 0, 0, "far", stand_in_plan(tmp_path / "run")), far)
    with raises(
        HostFailed,
        host="far",
        cause="the processor is aarch64, and run.mode sync needs x86-64: other processors "
        "may reorder the stores by which processes share segments and weights; "
        "run.mode single is supported",
    ):
        far.agent.on_handshake(Handshake({**versions(), "machine": "aarch64"}, 1, time.time()))
    assert far.lines == []


def test_a_remote_host_without_the_runtime_of_its_workers_receives_nothing(tmp_path: Path) -> None:
    far, plan = Far(), stand_in_plan(tmp_path / "run")
    plan = replace(plan, config=replace(plan.config, network=NetworkSection(runtime="onnx")))
    far.agent = agent_of(Boot("agent", 0, 0, "far", plan), far)
    with raises(
        HostFailed, host="far", cause="onnxruntime is missing, with which workers act (network.runtime: onnx)"
    ) as failed:
        far.agent.on_handshake(Handshake({**versions(), "onnxruntime": None}, 1, time.time()))
    assert "zmqrl setup HOSTS.yaml --limit far --extras onnx" in str(failed.value.fix)
    assert far.lines == []
    far.agent.on_handshake(Handshake(versions(), 1, time.time()))
    assert len(far.lines) == 1


def test_the_boot_is_the_first_line_also_when_a_lease_is_due_meanwhile(tmp_path: Path) -> None:
    far = Far()
    boot = Boot("agent", 0, 0, "far", stand_in_plan(tmp_path / "run"))
    far.agent = agent_of(boot, far)
    far.agent.send(Lease())
    far.agent.on_handshake(Handshake(versions(), 1, time.time()))
    far.agent.send(Lease())
    assert [line.get("command", line.get("role")) for line in far.lines] == ["agent", "lease", "lease"]


def test_nothing_is_sent_to_an_agent_that_has_ended(tmp_path: Path) -> None:
    """Its channel sends no more: leases, one in a second, would wait there as long as the run lasts."""
    far = Far()
    boot = Boot("agent", 0, 0, "far", stand_in_plan(tmp_path / "run"))
    far.agent = agent_of(boot, far)
    far.agent.on_handshake(Handshake(versions(), 1, time.time()))
    sent, far.code = len(far.lines), -1
    far.agent.send(Lease())
    assert len(far.lines) == sent


def test_the_boot_has_the_age_of_the_run_when_it_is_sent(tmp_path: Path) -> None:
    """A job may wait for its resources for hours; and the agent may have another clock."""
    far, plan = Far(), stand_in_plan(tmp_path / "run")
    boot = Boot("agent", 0, 0, "far", replace(plan, began=time.monotonic() - 7200.0))
    far.agent = agent_of(boot, far)
    far.agent.on_handshake(Handshake(versions(), 1, time.time()))
    (sent,) = far.lines
    assert 7200.0 <= sent["age_s"] < 7260.0
    received = by_own_clock(from_json(Boot, {**sent, "plan": {**sent["plan"], "began": 1e9}}))
    assert 7200.0 <= time.monotonic() - received.plan.began < 7260.0


def test_a_handshake_after_its_limit_is_late_in_either_order(tmp_path: Path) -> None:
    far = Far()
    boot = Boot("agent", 0, 0, "far", stand_in_plan(tmp_path / "run"))
    far.agent = agent_of(boot, far)
    far.agent.began -= boot.plan.config.limits.start_s
    with raises(
        HostFailed,
        host="far",
        cause="no handshake of the host agent within limits.start_s (120 s); its login shell printed nothing",
    ):
        far.agent.on_handshake(Handshake(versions(), 1, time.time()))
    assert far.agent.overdue() is None, "reported once"
    assert far.lines == []


@pytest.mark.parametrize("wrap", [None, "env"])
def test_an_agent_without_a_boot_leaves_no_connection(tmp_path: Path, wrap: str | None) -> None:
    """Behind a `wrap` it may ignore the end of its stdin: its connection is for the reaper, until it is replaced."""
    connection = create_autospec(Connection, instance=True)
    boot = Boot("agent", 0, 0, "far", stand_in_plan(tmp_path / "run"))
    agent = agent_of(boot, connection, wrap)
    agent.terminate()
    assert connection.start.return_value.terminate.called and connection.close.called == (wrap is None)
    agent.release()
    assert connection.close.called
