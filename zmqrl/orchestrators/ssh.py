"""Other hosts: one SSH connection and one channel each. The host `local`, where it participates, is this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.kinds import NO_KEYS, NoKeys
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import Agent
from zmqrl.orchestrators.host_commands import REMOTE_RUNS, agent_command
from zmqrl.orchestrators.remote_checkpoints import LearnerFiles, bring_left, run_folder
from zmqrl.orchestrators.shell_orchestrator import ShellAgent, ShellOrchestrator
from zmqrl.ssh.clients import connect, connect_all, make_client
from zmqrl.ssh.code_sync import find_code, make_archive, send_code
from zmqrl.ssh.connection import SILENT_S, Connection
from zmqrl.ssh.shell import HostShell

MOST_UPLOADS = 4
"""Hosts that files are sent to at once. They share the uplink of this machine: of many, none would be ready in time."""
TURN_S = 30.0
"""A host that has waited so long for others is sent its files nevertheless: those others may be stuck."""


class SshOrchestrator(ShellOrchestrator):
    """One connection per host."""

    returns_checkpoints = sends_code = True

    def __init__(self, config: NoKeys, plan: RunPlan) -> None:
        """ConfigError when `code.sync` holds too much, or cannot be read, or `ssh.client` cannot work here."""
        super().__init__(config, plan)
        make_client(plan.config.ssh)
        self._archive = make_archive(plan.config.code)
        self._files = LearnerFiles(plan, self.warn)
        self._tunnels: dict[str, tuple[HostShell, list[int]]] = {}
        """Tunnels by host: the ports there, and the connection that they end with."""
        self._uploads = threading.Semaphore(MOST_UPLOADS)

    @classmethod
    def shell(cls, config: NoKeys, run: RunConfig, host: str) -> Connection:
        return connect(run, host)

    def shells(self, boots: Mapping[str, Boot]) -> Iterator[tuple[str, Connection | HostFailed]]:
        bears_s = max(SILENT_S, self.plan.config.limits.host_lease_s)
        listed = {host: boot.plan.config.hosts[host] for host, boot in boots.items() if host in boot.plan.config.hosts}
        yield from connect_all(replace(self.plan.config, hosts=listed), list(boots), bears_s)

    def agent(self, boot: Boot, shell: HostShell) -> ShellAgent | None:
        """Files that the host needs are sent, then its agent is started."""
        assert isinstance(shell, Connection)
        access = self.access(NO_KEYS, boot.plan.config)
        section = access.section(boot.host)
        code = self._upload(boot, section, shell)
        if self.is_ending.is_set():
            return None
        command = agent_command(section, boot.plan.run_id, boot.host, code)
        agent = ShellAgent(boot, self.warn, shell, access, self.log_of(boot.host), command)
        self._files.mirror(shell, run_folder(boot, section))
        return agent

    def _upload(self, boot: Boot, section: HostSection, connection: Connection) -> str | None:
        """Send what the host lacks. Returns the folder of the user's own modules there, if there are any."""
        archive, workdir = self._archive, section.workdir or "~"
        code = None if archive is None else find_code(connection, archive, workdir)
        missing = archive if code is None else None
        if missing is None and not self._files.has_files(boot.host):
            return code
        with self._turn():
            if self.is_ending.is_set():
                return None
            self._files.send(connection, run_folder(boot, section))
            return code if missing is None else send_code(connection, missing, workdir)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One of `MOST_UPLOADS`, or one more after `TURN_S`."""
        is_one_of_them = self._uploads.acquire(timeout=TURN_S)
        try:
            yield
        finally:
            if is_one_of_them:
                self._uploads.release()

    def reach(self, host: str, addresses: Sequence[str], ports: Sequence[int]) -> tuple[list[str], list[int]]:
        agent = self.agents.get(host)
        if not isinstance(agent, ShellAgent) or not agent.section.tunnel:
            return list(addresses), list(ports)
        learner_here = self.plan.config.learner.host == LOCAL
        places = ["127.0.0.1"] if learner_here or not addresses else addresses
        shell, there = self._tunnels.get(host, (None, []))
        if shell is not agent.shell or not agent.shell.is_alive():
            there = [agent.shell.forward_back([(place, port) for place in places]) for port in ports]
            self._tunnels[host] = agent.shell, there
        return ["127.0.0.1"], there

    def end_starts(self) -> None:
        super().end_starts()
        self._files.close()

    def read_to_the_end(self, agent: Agent) -> None:
        if isinstance(agent, ShellAgent) and isinstance(agent.shell, Connection):
            self._files.collect(agent.shell, run_folder(agent.boot, agent.section))

    @classmethod
    def access(cls, config: NoKeys, run: RunConfig) -> SshAccess:
        return SshAccess(config, run)


class SshAccess(HostAccess):
    """A connection to each host."""

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, Connection | HostFailed]]:
        yield from connect_all(self.run, hosts)

    def bring_left(self, host: str, run_id: str, checkpoints: Path) -> None:
        folder = f"{self.section(host).workdir}/{REMOTE_RUNS}/{run_id}/{host}"
        bring_left(host, self.run, folder, checkpoints)
