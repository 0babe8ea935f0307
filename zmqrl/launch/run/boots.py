"""What the agent of each host is started with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, RunPlan, TcpListen, worker_indexes
from zmqrl.config.sections import HostSection, LearnerSection
from zmqrl.orchestrators.host_commands import REMOTE_RUNS


def boots(plan: RunPlan) -> dict[str, Boot]:
    """One boot per host that participates, the learner's first; what the launcher alone needs stays with it."""
    learner = plan.config.learner.host
    held = worker_indexes(plan.workers)
    hosts = [learner, *(host for host, workers in held.items() if host != learner and workers)]
    listen = _listen(plan, hosts) if len(hosts) > 1 else None
    return {host: boot_of(plan, host, held.get(host, ()), listen if host == learner else None) for host in hosts}


def boot_of(plan: RunPlan, host: str, workers: Sequence[int], listen: TcpListen | None = None) -> Boot:
    """Boot of the agent of one host. `listen`: where the broker listens, for the learner's host."""
    section = plan.config.hosts.get(host)
    plan = replace(plan, config=replace(plan.config, on_end=None, webhook=None))
    return Boot(
        "agent",
        0,
        0,
        host,
        plan if host == LOCAL else replace(plan, run_dir=f"{REMOTE_RUNS}/{plan.run_id}/{host}"),
        workers=tuple(workers),
        listen=listen,
        streams_logs=host != LOCAL,
        neighbours="refused" if refuses_others(host, section) else "ignored",
    )


def refuses_others(host: str, section: HostSection | None) -> bool:
    """Whether a run of another user keeps this one from the host, unless its orchestrator shares hosts by design."""
    return host != LOCAL and (section is None or section.cores is None)


def _listen(plan: RunPlan, hosts: Sequence[str]) -> TcpListen:
    """All interfaces; loopback only when every other host uses a tunnel to this machine."""
    tunnels = all(host in plan.config.hosts and plan.config.hosts[host].tunnel for host in hosts[1:])
    only_tunnels = tunnels and hosts[0] == LOCAL
    return TcpListen("127.0.0.1" if only_tunnels else "*", _ports(plan.config.learner))


def _ports(learner: LearnerSection) -> tuple[int, int, int]:
    if learner.port == "auto":
        return (0, 0, 0)
    return (learner.port, learner.port + 1, learner.port + 2)
