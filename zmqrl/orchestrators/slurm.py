"""Slurm: the host agent of each host is the one task of a job step, on the stdin and stdout of `srun`.

From a login node each host is a job. Within `salloc` or `sbatch` each host is a step of that allocation. Slurm itself
confirms the end: it kills every process of a step, and `squeue` lists the steps that are left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import FORBID_UNKNOWN, DefaultsSection, HostSection
from zmqrl.config.sections import Config as RunConfig
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.agents import PipedAgent, Warn
from zmqrl.orchestrators.base import Teardown
from zmqrl.orchestrators.host_commands import agent_command
from zmqrl.orchestrators.piped_orchestrator import PipedOrchestrator

ANSWER_S = 15.0
"""How long slurmctld may take to answer a command."""
REASON_EVERY_S = 2.0
ALLOCATION, NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"


@dataclass(frozen=True)
class SlurmConfig:
    """Host agents are Slurm job steps; the nodes share the file system of the launcher. Hosts are named as nodes."""

    __pydantic_config__ = FORBID_UNKNOWN

    partition: str | None = None
    """As of `srun`. Within an allocation it is not used, as account, qos, time, constraint and exclusive."""
    account: str | None = None
    """As of `srun`."""
    qos: str | None = None
    """As of `srun`."""
    time: str | None = None
    """Time limit of each host's job, as of `srun`: minutes, or days-hours:minutes."""
    constraint: str | None = None
    """Features of the nodes, as of `srun`."""
    gres: str | None = None
    """Generic resources of each host, such as `gpu:1`. Only the processes of the host see them."""
    cpus_per_task: int | None = None
    """CPUs of each host; null: its workers and one, on the learner's host three more."""
    exclusive: bool = False
    """Nodes for this run alone: another user's run on a node is an error and no warning."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of `srun`."""


class SlurmAgent(PipedAgent):
    """One job step, by its name."""

    def __init__(self, boot: Boot, warn: Warn, command: Sequence[str], log: Path, allocation: str | None) -> None:
        self._allocation, self.name = allocation, name_of(boot.plan.run_id, boot.host)
        super().__init__(boot, warn, command, log)

    def remaining(self) -> Sequence[str]:
        return remaining(self.host, self.name, self._allocation)

    def cancel(self, names: Sequence[str]) -> None:
        slurm(self.host, "scancel", "--full" if self._allocation is None else "--quiet", *names)

    def pending(self) -> str | None:
        """Why its job waits, in Slurm's words; None when it does not."""
        if self._allocation is not None:
            return None
        state, _, reason = slurm(self.host, "squeue", "-h", "-n", self.name, "-o", "%T %r").partition(" ")
        return reason if state == "PENDING" else None


class SlurmOrchestrator(PipedOrchestrator):
    """A step per host; the host `local`, where it participates, is this machine."""

    Config = SlurmConfig

    def __init__(self, config: SlurmConfig, plan: RunPlan) -> None:
        """ConfigError when this allocation has fewer nodes than the plan has hosts."""
        super().__init__(config, plan)
        self._allocation = os.environ.get(ALLOCATION)
        self._closed = threading.Event()
        learner = plan.config.learner.host
        taking_part = dict.fromkeys([learner, *(host for host, workers in plan.workers.items() if workers)])
        self._nodes = nodes_of([host for host in taking_part if host != LOCAL])

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        super().deploy(boots)
        threading.Thread(target=self._report_pending, name="pending jobs", daemon=True).start()

    @classmethod
    def section(cls, run: RunConfig, host: str) -> HostSection:
        """With this interpreter, unless another was set: the nodes share the file system."""
        section = super().section(run, host)
        return replace(section, python=sys.executable) if section.python == DefaultsSection().python else section

    @classmethod
    def prefix(cls, config: SlurmConfig, run: RunConfig, host: str) -> list[str]:
        name = f"zmqrl-check-{host}"
        return [*_srun(config, name, nodes_of([host])[host], 1), f"--immediate={ANSWER_S:g}"]

    def agent(self, boot: Boot) -> SlurmAgent:
        boot = replace(boot, neighbours="refused" if self.config.exclusive else "warned")
        name = name_of(boot.plan.run_id, boot.host)
        cpus = self.config.cpus_per_task or _cpus(self.plan, boot)
        command = agent_command(self.section(self.plan.config, boot.host), boot.plan.run_id)
        srun = [*_srun(self.config, name, self._nodes[boot.host], cpus), "sh", "-c", command]
        return SlurmAgent(boot, self.warn, srun, self.log_of(boot.host), self._allocation)

    def _report_pending(self) -> None:
        """A thread: jobs that wait for resources, each with Slurm's reason, once per reason."""
        reported: dict[str, str] = {}
        while not self._closed.wait(REASON_EVERY_S):
            waiting = [a for a in self.agents.values() if isinstance(a, SlurmAgent) and not a.is_booted]
            for agent in waiting:
                try:
                    reason = agent.pending()
                except HostFailed:
                    continue  # slurmctld is busy or away: srun reports what it means
                if reason is not None and reported.get(agent.host) != reason:
                    reported[agent.host] = reason
                    self.warn(agent.host, f"the Slurm job {agent.name} is pending: {reason}")
            if not waiting:
                return

    def undeploy(self, grace_s: float) -> Teardown:
        self._closed.set()
        return super().undeploy(grace_s)


def name_of(run_id: str, host: str) -> str:
    """Of a host's job or step: `zmqrl down` and users find it by this."""
    return f"zmqrl-{run_id}-{host}"


def remaining(host: str, name: str, allocation: str | None) -> list[str]:
    """Ids of the jobs of that name, or of the steps within an allocation. HostFailed when Slurm does not answer."""
    if allocation is None:
        return slurm(host, "squeue", "-h", "-n", name, "-o", "%i").split()
    steps = slurm(host, "squeue", "-h", "-s", "-j", allocation, "-o", "%i %j").splitlines()
    return [step.split()[0] for step in steps if step.split()[1:] == [name]]


def nodes_of(hosts: Sequence[str]) -> dict[str, str | None]:
    """The node of each host; None: Slurm chooses one.

    Within an allocation, hosts that are not named as nodes of it get its other nodes, in order.

    Raises:
        ConfigError: The allocation has fewer nodes.
    """
    listed = os.environ.get(NODES)
    if ALLOCATION not in os.environ or listed is None:
        known = set(slurm("slurm", "sinfo", "-h", "-N", "-o", "%N").split())
        return {host: host if host in known else None for host in hosts}
    nodes = slurm("slurm", "scontrol", "show", "hostnames", listed).split()
    free = [node for node in nodes if node not in hosts]
    unnamed = [host for host in hosts if host not in nodes]
    if len(unnamed) > len(free):
        raise ConfigError(
            f"hosts: {len(hosts)} hosts, and the Slurm allocation {os.environ[ALLOCATION]} has {len(nodes)} nodes "
            f"({', '.join(nodes)}): allocate more, or use --limit"
        )
    return {host: host if host in nodes else free[unnamed.index(host)] for host in hosts}


def slurm(host: str, *command: str) -> str:
    """Output of a command of Slurm. HostFailed with Slurm's own words, under the name of `host`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except FileNotFoundError as error:
        raise HostFailed(host, f"{command[0]} was not found", "run zmqrl where the commands of Slurm are") from error
    except subprocess.TimeoutExpired as error:
        raise HostFailed(host, f"{command[0]} did not answer within {ANSWER_S:g} s", "is slurmctld up?") from error
    if done.returncode != 0:
        raise HostFailed(host, (done.stderr.strip() or f"{command[0]} failed").splitlines()[-1], "see `sinfo`")
    return done.stdout


def _srun(config: SlurmConfig, name: str, node: str | None, cpus: int) -> Iterator[str]:
    """The command of a step, but for what it runs."""
    yield from ("srun", "--nodes=1", "--ntasks=1", "--unbuffered", "--kill-on-bad-exit=1", "--input=0")
    yield from (f"--job-name={name}", f"--cpus-per-task={cpus}")
    if node is not None:
        yield f"--nodelist={node}"
    if config.gres is not None:
        yield f"--gres={config.gres}"
    if ALLOCATION in os.environ:
        yield from (f"--jobid={os.environ[ALLOCATION]}", "--overlap")
    else:
        wanted = {name: getattr(config, name) for name in ("partition", "account", "qos", "time", "constraint")}
        yield from (f"--{name}={value}" for name, value in wanted.items() if value is not None)
        if config.exclusive:
            yield "--exclusive"
    yield from config.extra_args


def _cpus(plan: RunPlan, boot: Boot) -> int:
    return len(boot.workers) + (4 if boot.host == plan.config.learner.host else 1)
