"""This machine: the host agent is a child of the launcher, in a separate session."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.hosts import is_remote
from zmqrl.config.kinds import NO_KEYS, NoKeys
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, HostSection
from zmqrl.debugging import terminal_here
from zmqrl.errors import HostFailed
from zmqrl.loading import importing_environment
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import KILL_WAIT_S, Agent, HostEnd, Warn
from zmqrl.orchestrators.agents_orchestrator import AgentsOrchestrator
from zmqrl.orchestrators.piped import PipedProcess, PipedShell
from zmqrl.supervision import check_process
from zmqrl.supervision.process_mark import marked_by_host
from zmqrl.supervision.process_table import ProcessId, await_gone, kill

ENTRY = (sys.executable, "-m", "zmqrl.entry")
DEATH_SIGNAL_S = 1.0
"""How long the kernel may take to kill the children of a killed agent."""


class LocalAgent(Agent):
    """Runs with this interpreter, in this working directory, and imports from where this process does.

    It is the template of the check processes where there is one: that has imported what an agent needs.
    """

    pipe: PipedProcess

    def __init__(self, boot: Boot, warn: Warn, agent_command: Sequence[str] = ENTRY) -> None:
        log = Path(boot.plan.run_dir) / "logs" / f"{boot.host}-agent-0.log"
        command = [*agent_command, "zmqrl.agent", boot.plan.run_id, "0"]
        terminal = terminal_here() if boot.plan.config.mode.in_process else {}
        environment, here = {**importing_environment(), **terminal}, tuple(agent_command) == ENTRY
        begun = check_process.become(command, environment, log) if here else None
        start = partial(PipedProcess, boot.host, command, environment=environment, begun=begun)
        super().__init__(boot, warn, log, start)
        self._killed: list[str] = []

    def silent_end(self, code: int | None) -> None:
        """Its log is in the run directory, where the launcher reads it."""

    def no_handshake(self, when: str) -> HostFailed:
        cause = f"no handshake of the host agent {when}"
        return HostFailed(self.host, cause, "raise limits.start_s if this machine is busy")

    def kill(self) -> None:
        super().kill()
        self._killed.append(f"{self.host}/agent-0 (pid {self.pipe.pid})")

    def end(self) -> HostEnd:
        killed = self._killed
        processes = {ProcessId(*process): who for process, who in self.progress.started.items()}
        # an agent that has started nothing, since the run refused it, has no share in those of another one of its name
        for process in marked_by_host(self.boot.plan.run_id, self.host) if processes else ():
            processes.setdefault(process, f"{self.host}/stray (pid {process.pid})")
        orphans = await_gone(processes, DEATH_SIGNAL_S)
        killed += [processes[process] for process in orphans if kill(process)]
        left = await_gone(processes, KILL_WAIT_S)
        self.pipe.close()
        return HostEnd(tuple(killed), tuple(processes[process] for process in left))


class LocalOrchestrator(AgentsOrchestrator):
    """Every host is this machine: a run has one, tests have several."""

    def __init__(
        self, config: NoKeys = NO_KEYS, plan: RunPlan | None = None, agent_command: Sequence[str] = ENTRY
    ) -> None:
        """`agent_command`: the command before `zmqrl.agent RUN 0`. No plan: a host that joins a run of elsewhere."""
        super().__init__(config, plan)
        self._agent_command = tuple(agent_command)

    @classmethod
    def access(cls, config: NoKeys, run: Config) -> LocalAccess:
        return LocalAccess(config, run)

    def refusal(self, host: str, section: HostSection) -> str | None:
        if is_remote(host, section):
            return "the run was started without SSH, on this machine alone"
        return None

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        for boot in boots.values():
            self.adopt(LocalAgent(boot, self.warn, self._agent_command))


class LocalAccess(HostAccess):
    """Every host is this machine."""

    def section(self, host: str) -> HostSection:
        return replace(super().section(host), python=sys.executable)

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, PipedShell]]:
        for host in hosts:
            yield host, PipedShell(host)
