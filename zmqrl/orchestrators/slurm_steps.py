"""Slurm: the kind's configuration, and the command line of a host's job or step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import FORBID_UNKNOWN, Config, HostSection
from zmqrl.errors import ConfigError
from zmqrl.orchestrators import slurm_commands
from zmqrl.orchestrators.slurm_commands import Allocation

OF_A_JOB = ("partition", "account", "qos", "time", "constraint")
NOT_USED = ("ssh", "user", "port", "identity", "jump", "tunnel", "workdir")
"""Keys of a host that do not apply to a node of Slurm."""
LEARNER_CPUS = 2
"""CPUs of broker and learner."""


@dataclass(frozen=True)
class SlurmConfig:
    """Host agents are Slurm job steps. The nodes share the run directory, Python and modules of this machine."""

    __pydantic_config__ = FORBID_UNKNOWN

    partition: str | None = None
    """Partition, as of `srun`. Not used within an allocation, nor are account, qos, time, constraint and exclusive."""
    account: str | None = None
    """Account, as of `srun`."""
    qos: str | None = None
    """Quality of service, as of `srun`."""
    time: str | None = None
    """Time limit of each job, as of `srun`: minutes, or days-hours:minutes."""
    constraint: str | None = None
    """Features of the nodes, as of `srun`."""
    gres: str | None = None
    """Generic resources of the learner's host, such as `gpu:1`. The processes of other hosts do not see them."""
    cpus_per_task: int | None = None
    """CPUs of each host; null: one for each worker, 2 more on the learner's host; all CPUs of an allocation's node."""
    exclusive: bool = False
    """Nodes for this run alone: a run of another user on a node is then an error, otherwise a warning."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of `srun`, and of `sbatch` with --submit."""


def srun(
    config: SlurmConfig,
    run: Config,
    host: str,
    node: str | None,
    name: str,
    cpus: int,
    allocation: Allocation | None,
) -> Iterator[str]:
    """The arguments of the command that makes a host's step, up to what it runs."""
    yield from ("srun", "--nodes=1", "--ntasks=1", "--unbuffered", "--kill-on-bad-exit=1", "--input=0")
    yield f"--job-name={name}"
    if allocation is None or config.cpus_per_task is not None:
        yield f"--cpus-per-task={config.cpus_per_task or cpus}"
    if node is not None:
        yield f"--nodelist={node}"
    if config.gres is not None:
        yield f"--gres={config.gres if host == run.learner.host else 'none'}"
    if allocation is not None:
        yield from (f"--jobid={allocation.job}", "--overlap")
    else:
        wanted = {key: getattr(config, key) for key in OF_A_JOB}
        yield from (f"--{key}={value}" for key, value in wanted.items() if value is not None)
        if config.exclusive:
            yield "--exclusive"
    yield from config.extra_args


def section_of(run: Config, host: str) -> HostSection:
    """Section of a host, as it is in hosts.yaml."""
    return run.hosts.get(host, HostSection())


def nodes_needed(run: Config) -> list[str]:
    """The hosts that are nodes of Slurm, the learner's first; every mapping of hosts to nodes takes this order."""
    taking_part = dict.fromkeys([run.learner.host, *(host for host in run.hosts if workers_of(run, host))])
    return [host for host in taking_part if host != LOCAL and not section_of(run, host).manual]


def workers_of(run: Config, host: str) -> int:
    """Rollout workers of a host; one for `auto`, the least that it means."""
    if run.mode.in_process or host not in run.hosts:
        return 0
    workers = run.hosts[host].workers
    return workers if isinstance(workers, int) else 1


def cpus_of(run: Config, host: str) -> int:
    """CPUs that the processes of a host keep busy."""
    learner = LEARNER_CPUS if host == run.learner.host else 0
    return max(1, workers_of(run, host) + learner)


def nodes_of(hosts: Sequence[str], allocation: Allocation | None) -> dict[str, str | None]:
    """The node of each host; None: Slurm chooses one.

    Within an allocation, hosts that are not named as nodes of it get its other nodes, in order.

    Raises:
        ConfigError: The allocation has fewer nodes.
        HostFailed: Slurm does not answer.
    """
    if allocation is None:
        known = slurm_commands.known_nodes() if hosts else set()
        return {host: host if host in known else None for host in hosts}
    free = [node for node in allocation.nodes if node not in hosts]
    unnamed = [host for host in hosts if host not in allocation.nodes]
    if len(unnamed) > len(free):
        has = f"{len(allocation.nodes)} node{'s' if len(allocation.nodes) > 1 else ''}"
        raise ConfigError(
            f"the run has {len(hosts)} hosts ({', '.join(hosts)}), and the Slurm allocation "
            f"{allocation.job} has {has} ({', '.join(allocation.nodes)})",
            key=("hosts",),
            fix=f"allocate {len(hosts)} (salloc -N{len(hosts)}), or use --limit",
        )
    given = dict(zip(unnamed, free, strict=False))
    return {host: given.get(host, host) for host in hosts}


def check_keys(config: Config, hosts: Sequence[str]) -> None:
    """Raise `ConfigError` for keys of hosts.yaml that do not apply to nodes."""
    for host in hosts:
        key = next((key for key in NOT_USED if getattr(section_of(config, host), key) not in (None, False)), None)
        if key is not None:
            why = "a node of Slurm is not reached by SSH, and shares the files of this machine"
            raise ConfigError(why, key=("hosts", host, key), fix="remove the key")
