"""Kinds that give a shell of each host: the host agent runs over it, and its end is verified over it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config as RunConfig
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError, HostFailed, as_host_failed, unusable
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import KILL_WAIT_S, Agent, HostEnd, Warn
from zmqrl.orchestrators.agents_orchestrator import AgentsOrchestrator
from zmqrl.orchestrators.base import Teardown
from zmqrl.orchestrators.host_commands import agent_command
from zmqrl.orchestrators.local import LocalAgent
from zmqrl.orchestrators.on_hosts import ended_by_engine, ended_over
from zmqrl.ssh.shell import HostShell


class ShellAgent(Agent):
    """The host agent over a shell of its host, which it owns."""

    def __init__(
        self, boot: Boot, warn: Warn, shell: HostShell, access: HostAccess, log: Path, command: str | None = None
    ) -> None:
        """Start it. HostFailed.

        Args:
            boot: Sent to it after its handshake.
            warn: As of `Agent`.
            shell: Of its host.
            access: What has its section, and knows whether the engine lists what is left of it.
            log: Its stderr is appended to this file.
            command: Line of the shell; None: `agent_command`.
        """
        self.section, self.shell, self._access = access.section(boot.host), shell, access
        command = command or agent_command(self.section, boot.plan.run_id, boot.host)
        super().__init__(boot, warn, log, partial(shell.start, command))

    def terminate(self) -> None:
        super().terminate()
        if self.section.wrap is None:  # else `end` needs the shell
            self.shell.close()

    def release(self) -> None:
        super().release()
        self.shell.close()

    def end(self) -> HostEnd:
        run_id = self.boot.plan.run_id
        self.pipe.close()
        try:
            with as_host_failed(self.host):
                if self._access.lists_jobs:
                    return ended_by_engine(self._access, self.host, run_id)
                if not self.is_booted and self.section.wrap is None:  # a wrap may wait, and ignore the end of its stdin
                    return HostEnd()  # nothing of the run was started there
                self.shell = self.shell.renewed()
                return ended_over(self.shell, self.section, run_id, self.host)
        except HostFailed as error:
            return HostEnd(left=(f"{self.host}/? (unreachable: {error.cause})",))
        finally:
            self.shell.close()


class ShellOrchestrator(AgentsOrchestrator, ABC):
    """A kind needs no more than `shell`. The host `local`, where it participates, is this machine.

    Hosts are reached in parallel, each in a thread of its own; one that fails is reported, and the others continue.
    """

    sends_code: ClassVar[bool] = False
    """Whether the modules of `code.sync` are sent to the hosts."""

    def __init__(self, config: Any, plan: RunPlan) -> None:
        """ConfigError when the plan needs modules to be sent, and the kind sends none."""
        super().__init__(config, plan)
        self.config, self.plan = config, plan
        self.is_ending = threading.Event()
        """Set by `end_starts`: no further agent is started."""
        self._connectors: list[threading.Thread] = []
        if plan.config.code.sync and not self.sends_code:
            raise ConfigError(
                f"orchestrator.kind {plan.config.orchestrator.kind!r} does not send modules to hosts: "
                "install them there, or set PYTHONPATH in hosts.NAME.env",
                key=("code", "sync"),
                others=(("orchestrator", "kind"),),
            )

    @classmethod
    @abstractmethod
    def shell(cls, config: Any, run: RunConfig, host: str) -> HostShell:
        """A new shell of `host`, which the caller closes. HostFailed.

        Called for one host after the other, when agents are started, and for `workers: auto`, `down` and `doctor`:
        what takes long is done by `HostShell.start` and `run`, which are called for all hosts at once. `Config`
        or `__init__` refuse a wrong value before that.

        Args:
            config: A `Config`.
            run: The whole configuration.
            host: A name of `hosts` other than `local`.
        """

    def shells(self, boots: Mapping[str, Boot]) -> Iterator[tuple[str, HostShell | HostFailed]]:
        """Shells for the agents of the run, as hosts are reached, or with the reason why one is not."""
        for host, boot in boots.items():
            yield from self.access(self.config, boot.plan.config).shells([host])

    def agent(self, boot: Boot, shell: HostShell) -> Agent | None:
        """The started agent of a host, which owns its shell. HostFailed. In a thread of its own: it may take its time.

        None: `is_ending` was set meanwhile.
        """
        access = self.access(self.config, boot.plan.config)
        return ShellAgent(boot, self.warn, shell, access, self.log_of(boot.host))

    def log_of(self, host: str) -> Path:
        """The log of a host's agent."""
        return Path(self.plan.run_dir) / "logs" / f"{host}-agent-0.log"

    def refusal(self, host: str, section: HostSection) -> str | None:
        return None

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        if LOCAL in boots:
            self._adopted(LOCAL, partial(LocalAgent, boots[LOCAL], self.warn))
        remote = {host: boot for host, boot in boots.items() if host != LOCAL}
        connector = threading.Thread(target=self._connect, args=(remote,), name="connector", daemon=True)
        self._connectors = [*(thread for thread in self._connectors if thread.is_alive()), connector]
        connector.start()

    @property
    def is_connecting(self) -> bool:
        """Whether hosts are still being reached."""
        return any(thread.is_alive() for thread in self._connectors)

    def _connect(self, boots: Mapping[str, Boot]) -> None:
        """The connector thread: hosts as they answer. Each is adopted or reported, in a thread of its own."""
        waiting, beginning = list(boots), []
        try:
            for host, found in self.shells(boots):
                if isinstance(found, HostFailed):
                    self._failed(found)
                else:
                    begin = threading.Thread(
                        target=self._begin, args=(boots[host], found), name=f"start of {host}", daemon=True
                    )
                    begin.start()
                    beginning.append(begin)
                waiting.remove(host)
        except Exception as error:  # noqa: BLE001 - the top of a thread: what is not reported would connect for ever
            for host in waiting:
                self._failed(unusable(host, error))
        for thread in beginning:
            thread.join()

    def _begin(self, boot: Boot, shell: HostShell) -> None:
        """The start of one host, which may take minutes."""
        for accepted in shell.accepted:
            self.warn(boot.host, accepted)
        if self.is_ending.is_set() or not self._adopted(boot.host, partial(self.agent, boot, shell)):
            shell.close()

    def _adopted(self, host: str, start: Callable[[], Agent | None]) -> bool:
        """Whether the agent of a host has been started."""
        try:
            with as_host_failed(host):
                agent = start()
                if agent is not None:
                    self.adopt(agent)
                return agent is not None
        except HostFailed as error:
            self._failed(error)
            return False

    def _failed(self, error: HostFailed) -> None:
        self.put(error.host, HostUnusable(error.cause, error.fix))

    def end_starts(self) -> None:
        """Start no further agent, and wait for starts that have begun. Bounded."""
        self.is_ending.set()
        until = time.monotonic() + KILL_WAIT_S
        for connector in self._connectors:
            connector.join(max(0.0, until - time.monotonic()))

    def undeploy(self, grace_s: float) -> Teardown:
        self.end_starts()
        return super().undeploy(grace_s)

    @classmethod
    def access(cls, config: Any, run: RunConfig) -> HostAccess:
        return ShellAccess(config, run, partial(cls.shell, config, run))


class ShellAccess(HostAccess):
    """Hosts behind the shells of a kind."""

    def __init__(self, config: Any, run: RunConfig, shell: Callable[[str], HostShell]) -> None:
        super().__init__(config, run)
        self._shell = shell

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, HostShell | HostFailed]]:
        for host in hosts:
            try:
                with as_host_failed(host):
                    shell = self._shell(host)
            except HostFailed as error:
                yield host, error
            else:
                yield host, shell
