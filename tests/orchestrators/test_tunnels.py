"""Tunnels of a host end with the connection that they were made on."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.sections import HostSection
from zmqrl.orchestrators.shell_orchestrator import ShellAgent
from zmqrl.orchestrators.ssh import SshOrchestrator
from zmqrl.ssh.connection import Connection


def agent_of(ports: list[int]) -> ShellAgent:
    agent = create_autospec(ShellAgent, instance=True)
    agent.section = HostSection(tunnel=True)
    agent.shell = create_autospec(Connection, instance=True)
    agent.shell.forward_back.side_effect = ports
    agent.shell.is_alive.return_value = True
    return agent  # type: ignore[no-any-return]


def test_a_host_that_returns_has_tunnels_of_its_new_connection(tmp_path: Path) -> None:
    plan = bus_plan(run_dir=tmp_path)
    hosts = {"b": HostSection(workers=1, tunnel=True)}
    orchestrator = SshOrchestrator(NO_KEYS, replace(plan, config=replace(plan.config, hosts=hosts)))
    for ports in ([1, 2, 3], [4, 5, 6]):
        orchestrator.agents["b"] = agent_of(ports)
        for _ in range(2):
            assert orchestrator.reach("b", ["10.0.0.1"], [7, 8, 9]) == (["127.0.0.1"], ports)
