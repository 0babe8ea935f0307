"""Kinds that reach a host by a command of this machine, such as `srun`, `docker exec -i` and `kubectl exec -i`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError, HostFailed, as_host_failed
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import Agent, HostEnd, Warn
from zmqrl.orchestrators.agents_orchestrator import AgentsOrchestrator
from zmqrl.orchestrators.host_commands import agent_command
from zmqrl.orchestrators.local import LocalAgent
from zmqrl.orchestrators.on_hosts import ended_over
from zmqrl.orchestrators.piped import PipedAgent, PipedShell


class PipedOrchestrator(AgentsOrchestrator, ABC):
    """A kind needs no more than `prefix`. The host `local`, where it participates, is this machine."""

    def __init__(self, config: Any, plan: RunPlan) -> None:
        """ConfigError when the plan needs modules to be sent: only ssh does."""
        super().__init__(config, plan)
        self.config, self.plan = config, plan
        if plan.config.code.sync:
            raise ConfigError(
                f"orchestrator.kind {plan.config.orchestrator.kind!r} does not send modules to hosts: "
                "install them there, or set PYTHONPATH in hosts.NAME.env",
                key=("code", "sync"),
                others=(("orchestrator", "kind"),),
            )

    @classmethod
    @abstractmethod
    def prefix(cls, config: Any, run: RunConfig, host: str) -> Sequence[str]:
        """The command that runs its further arguments on `host`, with its stdin and stdout. HostFailed.

        Called when an agent is started, and for `workers: auto`, `down` and `doctor`. `Config` or `__init__` refuse a
        wrong value before that.

        Args:
            config: A `Config`.
            run: The whole configuration.
            host: A name of `hosts` other than `local`.
        """

    def agent(self, boot: Boot) -> Agent:
        """The started agent of a host. HostFailed when the command cannot be started."""
        run = boot.plan.config
        shell = PipedShell(boot.host, self.prefix(self.config, run, boot.host))
        section = self.access(self.config, run).section(boot.host)
        return ReapedAgent(boot, self.warn, shell, section, self.log_of(boot.host))

    def log_of(self, host: str) -> Path:
        """The log of a host's agent."""
        return Path(self.plan.run_dir) / "logs" / f"{host}-agent-0.log"

    def refusal(self, host: str, section: HostSection) -> str | None:
        return None

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        for host, boot in boots.items():
            try:
                with as_host_failed(host):
                    self.adopt(LocalAgent(boot, self.warn) if host == LOCAL else self.agent(boot))
            except HostFailed as error:
                self.put(host, HostUnusable(error.cause, error.fix))

    @classmethod
    def access(cls, config: Any, run: RunConfig) -> HostAccess:
        return PipedAccess(config, run, partial(cls.prefix, config, run))


class PipedAccess(HostAccess):
    """Hosts behind the command of a kind."""

    def __init__(self, config: Any, run: RunConfig, prefix: Callable[[str], Sequence[str]]) -> None:
        super().__init__(config, run)
        self._prefix = prefix

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, PipedShell | HostFailed]]:
        for host in hosts:
            try:
                yield host, PipedShell(host, self._prefix(host))
            except HostFailed as error:
                yield host, error


class ReapedAgent(PipedAgent):
    """Its processes are looked for by the reaper, which the same command starts."""

    def __init__(self, boot: Boot, warn: Warn, shell: PipedShell, section: HostSection, log: Path) -> None:
        self._shell, self.section = shell, section
        super().__init__(boot, warn, shell.argv(agent_command(section, boot.plan.run_id, boot.host)), log)

    def end(self) -> HostEnd:
        self.process.close()
        if not self.is_booted and self.section.wrap is None:
            return HostEnd()  # nothing of the run was started there
        return ended_over(self._shell, self.section, self.boot.plan.run_id, self.host)
