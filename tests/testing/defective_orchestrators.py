"""Local orchestrators, each with one defect; the end of a test ends what they leave."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import until
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.messages.agent import Exited
from zmqrl.messages.command import Command, Stop
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.base import HostEvent, Teardown
from zmqrl.orchestrators.local import LocalAccess, LocalOrchestrator

LEFT_S = 20.0
LEFT: list[subprocess.Popen[bytes]] = []
"""Of this process."""


def left(run_id: str) -> None:
    """A process that outlives its starter for a while."""
    code = f"import time; time.sleep({LEFT_S})"
    LEFT.append(subprocess.Popen([sys.executable, "-c", code, run_id], start_new_session=True))


class OtherConfig(LocalOrchestrator):
    @dataclass
    class Config:
        pass


class StartsEarly(LocalOrchestrator):
    def __init__(self, config: Any, plan: RunPlan) -> None:
        super().__init__(config, plan)
        left(plan.run_id)


class Waits(LocalOrchestrator):
    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy(boots)
        time.sleep(2.5)


class EndsLate(LocalOrchestrator):
    """The first `undeploy` does nothing."""

    is_first = True

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy(boots)
        for agent in self.agents.values():  # a process that was just started has no command line for a moment
            pid = agent.pipe.pid  # type: ignore[attr-defined]
            until(Path(f"/proc/{pid}/cmdline").read_bytes, "the command line of an agent")

    def undeploy(self, grace_s: float) -> Teardown:
        self.is_first, first = False, self.is_first
        return Teardown(ended=0) if first else super().undeploy(grace_s)


class Unordered(LocalOrchestrator):
    """The first event comes after the second."""

    first: HostEvent | None = None

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        found = list(super().monitor(timeout_s))
        if found and self.first is None:
            self.first = found.pop(0)
            return []
        if found and self.first not in self.seen:
            found.insert(1, self.first)  # type: ignore[arg-type]
        self.seen += found
        return found

    def __init__(self, config: Any, plan: RunPlan) -> None:
        super().__init__(config, plan)
        self.seen: list[HostEvent] = []


class IgnoresStop(LocalOrchestrator):
    def command(self, host: str | None, command: Command) -> None:
        if not isinstance(command, Stop):
            super().command(host, command)


class Impatient(LocalOrchestrator):
    def undeploy(self, grace_s: float) -> Teardown:
        return super().undeploy(0.0)


class Secretive(LocalOrchestrator):
    def undeploy(self, grace_s: float) -> Teardown:
        return replace(super().undeploy(grace_s), killed=())


class Forgetful(LocalOrchestrator):
    """Does not look for what a killed agent leaves."""

    def undeploy(self, grace_s: float) -> Teardown:
        for agent in self.agents.values():
            agent.end = lambda agent=agent: (agent.pipe.close(), HostEnd())[1]  # type: ignore[method-assign,misc]
        return super().undeploy(grace_s)


class Deaf(LocalOrchestrator):
    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        return [event for event in super().monitor(timeout_s) if not isinstance(event.event, Exited)]


class LeavesOne(LocalOrchestrator):
    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy(boots)
        left(next(iter(boots.values())).plan.run_id)


class DeploysOnce(LocalOrchestrator):
    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy({host: boot for host, boot in boots.items() if host not in self.agents})


class Wordless(LocalOrchestrator):
    def refusal(self, host: str, section: HostSection) -> str | None:
        return ""


class Uncounted(LocalOrchestrator):
    class Access(LocalAccess):
        def cores(self, hosts: Sequence[str]) -> Mapping[str, int]:
            return {}

    access = Access


class Closed(LocalOrchestrator):
    class Access(LocalAccess):
        def shells(self, hosts: Sequence[str]) -> Iterator[Any]:
            return ((host, HostFailed(host, "no shell", "none")) for host in hosts)

    access = Access


class FindsNothing(LocalOrchestrator):
    class Access(LocalAccess):
        def reap(self, hosts: Sequence[str], run_id: str, grace_s: float) -> Iterator[tuple[str, Reaped]]:
            return ((host, Reaped()) for host in hosts)

    access = Access


class FindsAndReportsNothing(LocalOrchestrator):
    class Access(LocalAccess):
        def reap(self, hosts: Sequence[str], run_id: str, grace_s: float) -> Iterator[tuple[str, Reaped]]:
            return ((host, Reaped()) for host, _ in super().reap(hosts, run_id, grace_s))

    access = Access


class OtherSeed(LocalOrchestrator):
    """Its hosts are told another seed than the run has."""

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy({host: _with_next_seed(boot) for host, boot in boots.items()})


def _with_next_seed(boot: Boot) -> Boot:
    config = boot.plan.config
    config = replace(config, run=replace(config.run, seed=config.run.seed + 1))
    return replace(boot, plan=replace(boot.plan, config=config))
