"""The nodes of Slurm without a run: jobs and steps that look, count and end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.plan import Neighbours
from zmqrl.config.sections import Config, DefaultsSection, HostSection
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators import slurm_commands
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.host_commands import job_name
from zmqrl.orchestrators.on_hosts import CANCEL_AGAIN_S, CANCEL_S
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.slurm_commands import Allocation, Listing
from zmqrl.orchestrators.slurm_steps import SlurmConfig, cpus_of, nodes_needed, nodes_of, srun

SIGNAL_AGAIN_S = 1.5
"""The launcher takes signals within a second of the first as the same."""
PROBE_S = 5
"""How long a probe of `zmqrl doctor` waits for resources."""


class SlurmAccess(HostAccess):
    """Reaches nodes by `srun`, and ends jobs by `scancel`."""

    config: SlurmConfig
    lists_jobs = queues = True

    def __init__(self, config: SlurmConfig, run: Config) -> None:
        super().__init__(config, run)
        self._listing = Listing()

    def section(self, host: str) -> HostSection:
        """Section of a host, with the working directory of the launcher, and its Python unless another is set."""
        section = super().section(host)
        python = sys.executable if section.python == DefaultsSection().python else section.python
        return replace(section, python=python, workdir=str(Path.cwd()))

    def prefixes(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        """Command of each host's job or step with the CPUs of its part, which waits `PROBE_S` for resources."""
        run, allocation, found = self.run, Allocation.own(), {}
        nodes = nodes_of(list(dict.fromkeys([*nodes_needed(run), *hosts])), allocation)
        for host in hosts:
            argv = srun(self.config, run, host, nodes[host], probe_name(host), cpus_of(run, host), allocation)
            found[host] = [*argv, f"--immediate={PROBE_S}"]
        return found

    def shells(self, hosts: Sequence[str]) -> Iterator[tuple[str, PipedShell | HostFailed]]:
        try:
            prefixes = self.prefixes(hosts)
        except HostFailed as error:
            yield from ((host, HostFailed(host, error.cause, error.fix)) for host in hosts)
        except ConfigError as error:
            fix = "run this command outside of the allocation, or in a larger one"
            yield from ((host, HostFailed(host, str(error), fix)) for host in hosts)
        else:
            yield from ((host, PipedShell(host, prefixes[host], slurm_commands.environment())) for host in hosts)

    def neighbours(self) -> Neighbours:
        return "refused" if self.config.exclusive else "warned"

    def cores(self, hosts: Sequence[str]) -> Mapping[str, int]:
        """CPUs of the allocation, else `cpus_per_task`, else the physical cores of the node."""
        try:
            allocation = Allocation.own()
            if allocation is not None:
                found = nodes_of(nodes_needed(self.run), allocation)
                return {host: allocation.nodes[found[host] or ""] for host in hosts if host in found}
            known = slurm_commands.physical_cores()
        except HostFailed as error:
            raise ConfigError(f"{error.cause}\n   {error.fix}", key=("orchestrator", "kind"), value="slurm") from error
        if self.config.cpus_per_task is not None:
            known = dict.fromkeys(hosts, self.config.cpus_per_task)
        unknown = next((host for host in hosts if host not in known), None)
        if unknown is not None:
            raise ConfigError(
                "Slurm has no node of this name, so its CPUs are unknown",
                key=("hosts", unknown, "workers"),
                value="'auto'",
                fix="set a number, or orchestrator.cpus_per_task",
                others=(("orchestrator", "cpus_per_task"),),
            )
        return {host: known[host] for host in hosts}

    def remaining(self, host: str, run_id: str) -> Sequence[str]:
        """Jobs or steps by name; without their launcher they end on their own."""
        return self._listing.ids(host, job_name(run_id, host))

    def cancel(self, names: Sequence[str]) -> None:
        slurm_commands.cancel(names)

    def end_job(self, job: str, wait_s: float) -> Reaped:
        """End a job as a second Ctrl-C does. One that does not end, or waits to be started again, is cancelled."""
        who, started = (f"Slurm job {job}",), time.monotonic()
        signal_at = started
        if slurm_commands.state_of(job) is None:
            return Reaped()
        while (state := slurm_commands.state_of(job)) not in (None, slurm_commands.PENDING):
            now = time.monotonic()
            if now > started + wait_s:
                break
            if now >= signal_at:
                slurm_commands.signal_script(job, "TERM")
                signal_at = now + (SIGNAL_AGAIN_S if signal_at == started else wait_s)
            time.sleep(CANCEL_AGAIN_S)  # Slurm has no event for the end of a job
        if state is None:
            return Reaped(ended=who)
        until = time.monotonic() + CANCEL_S
        slurm_commands.signal_script(job, "KILL")  # `scancel` alone has Slurm wait for its KillWait
        slurm_commands.cancel([job])
        while slurm_commands.state_of(job) is not None:
            if time.monotonic() > until:
                return Reaped(left=who)
            time.sleep(CANCEL_AGAIN_S)
        return Reaped(killed=who)


def probe_name(host: str) -> str:
    """Name of a job or step that looks at a host."""
    return f"zmqrl-check-{host}"
