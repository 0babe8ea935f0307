"""What each host's agent receives at its start: its workers, and where it keeps its files. It contains no key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, Listen, RunPlan, worker_indexes
from zmqrl.config.sections import LearnerSection
from zmqrl.orchestrators.host_commands import FAR_RUNS


def boots(plan: RunPlan) -> dict[str, Boot]:
    """One boot per host that participates, the learner's first."""
    learner = plan.config.learner.host
    held = worker_indexes(plan.workers)
    hosts = [learner, *(host for host, workers in held.items() if host != learner and workers)]
    listen = _listen(plan, hosts) if len(hosts) > 1 else None
    return {
        host: Boot(
            "agent",
            0,
            0,
            host,
            plan if host == LOCAL else replace(plan, run_dir=f"{FAR_RUNS}/{plan.run_id}/{host}"),
            workers=tuple(held.get(host, ())),
            listen=listen if host == learner else None,
            streams_logs=host != LOCAL,
            neighbours="ignored" if host == LOCAL else "refused",
        )
        for host in hosts
    }


def _listen(plan: RunPlan, hosts: Sequence[str]) -> Listen:
    """All interfaces; loopback only when every other host uses a tunnel to this machine."""
    tunnels = all(host in plan.config.hosts and plan.config.hosts[host].tunnel for host in hosts[1:])
    only_tunnels = tunnels and hosts[0] == LOCAL
    return Listen("127.0.0.1" if only_tunnels else "*", _ports(plan.config.learner))


def _ports(learner: LearnerSection) -> tuple[int, int, int]:
    if learner.port == "auto":
        return (0, 0, 0)
    return (learner.port, learner.port + 1, learner.port + 2)
