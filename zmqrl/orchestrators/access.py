"""What commands do on the hosts of a configuration without a run of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.config.hosts import filled
from zmqrl.config.plan import Neighbours
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import HostFailed
from zmqrl.messages.orchestrator import Reaped
from zmqrl.ssh.shell import HostShell


class HostAccess:
    """Reaches hosts for `workers: auto`, `zmqrl down`, `zmqrl doctor` and a resume. Hosts: none is local or manual."""

    lists_jobs = False
    """Whether the engine lists what it has of a run: `remaining` and `cancel` then end and verify, not the reaper."""
    queues = False
    """Whether hosts may have to wait for the engine: one that joins a live run is not reached before."""
    records_end_s = 2.0
    """What such an engine may take to record that a command has ended."""

    def __init__(self, config: Any, run: Config) -> None:
        """`config`: a `Config` of the kind; `run`: the whole configuration."""
        self.config, self.run = config, run

    def section(self, host: str) -> HostSection:
        """The section of a host, filled from the defaults; default values where `hosts` does not list it."""
        return filled(self.run.hosts.get(host, HostSection()), self.run.defaults)

    def sections(self, hosts: Sequence[str]) -> Mapping[str, HostSection]:
        """The section of each host."""
        return {host: self.section(host) for host in hosts}

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, HostShell | HostFailed]]:
        """Hosts as they are reached, or with the reason why one is not. The caller closes the shells."""
        cause = f"orchestrator.kind {self.run.orchestrator.kind!r} reaches hosts in a run only"
        yield from ((host, HostFailed(host, cause, "check the host in another way")) for host in hosts)

    def abandon(self) -> None:
        """Any thread: hosts of `shells` that an engine has not started yet are not waited for any longer."""
        return

    def neighbours(self) -> Neighbours:
        """What another user's run on a host means: an error, or a warning where hosts are shared by design."""
        return "refused"

    def cores(self, hosts: Sequence[str]) -> Mapping[str, int]:
        """Cores of hosts with `workers: auto`, before a run is planned; a host that does not answer is left out."""
        from zmqrl.orchestrators.on_hosts import cores_over

        return cores_over(self.shells(hosts), self.sections(hosts))

    def reap(self, hosts: Sequence[str], run_id: str, grace_s: float) -> Iterator[tuple[str, Reaped | HostFailed]]:
        """End what is left of a run whose launcher has ended, and verify it; each host as it is known. Bounded."""
        from zmqrl.orchestrators.on_hosts import end_jobs, reap_over

        if self.lists_jobs:
            yield from end_jobs(self, hosts, run_id, grace_s)
        else:
            yield from reap_over(self.shells(hosts), self.sections(hosts), run_id, grace_s, self.run.learner.host)

    def remaining(self, host: str, run_id: str) -> Sequence[str]:
        """What the engine still has of a host's part of a run, by names that `cancel` takes. Any thread. HostFailed."""
        del host, run_id
        return ()

    def cancel(self, names: Sequence[str]) -> None:
        """End these; `remaining` shows the result. HostFailed."""
        del names

    def end_job(self, job: str, wait_s: float) -> Reaped:
        """End a launcher in its `job` of an engine, and verify it. HostFailed.

        Args:
            job: What `Orchestrator.job` was on the launcher's machine.
            wait_s: How long the launcher may take to end its run.
        """
        cause = f"orchestrator.kind {self.run.orchestrator.kind!r} cannot end the job {job}"
        raise HostFailed("launcher", cause, "end it by the commands of its engine")

    def bring_left(self, host: str, run_id: str, checkpoints: Path) -> None:
        """Copy the checkpoints that an earlier learner left on `host` to `checkpoints`. HostFailed, OSError.

        Called before a resume, for kinds with `returns_checkpoints`.
        """
