"""What each host's agent receives at its start: its workers, its keys, and where it keeps its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import Boot, Keys, Listen, RunPlan, worker_indexes
from zmqrl.config.sections import LearnerSection
from zmqrl.orchestrators.host_commands import FAR_RUNS


def boots(plan: RunPlan) -> dict[str, Boot]:
    """One boot per host that participates, the learner's first. Keys are made here, for this run."""
    learner = plan.config.learner.host
    held = worker_indexes(plan.workers)
    hosts = [learner, *(host for host, workers in held.items() if host != learner and workers)]
    keys = _keys(plan, hosts) if len(hosts) > 1 else {}
    listen = _listen(plan, hosts) if len(hosts) > 1 else None
    return {
        host: Boot(
            "agent",
            0,
            0,
            host,
            plan if host == LOCAL else replace(plan, run_dir=f"{FAR_RUNS}/{plan.run_id}/{host}"),
            workers=tuple(held.get(host, ())),
            keys=keys.get(host),
            listen=listen if host == learner else None,
            streams_logs=host != LOCAL,
            neighbours="ignored" if host == LOCAL else "refused",
        )
        for host in hosts
    }


def _keys(plan: RunPlan, hosts: Sequence[str]) -> dict[str, Keys]:
    """One pair per host; the learner's host holds the broker's, and knows everyone's public half."""
    if plan.config.security.curve == "off":
        return {}
    import zmq

    server_public, server_secret = _pair(zmq.curve_keypair())
    learner, others = hosts[0], hosts[1:]
    pairs = {host: _pair(zmq.curve_keypair()) for host in others}
    keys = {host: Keys(server_public, public, secret) for host, (public, secret) in pairs.items()}
    allowed = {public: host for host, (public, _) in pairs.items()}
    return {learner: Keys(server_public, server_secret=server_secret, allowed=allowed), **keys}


def _pair(keys: tuple[bytes, bytes]) -> tuple[str, str]:
    return keys[0].decode(), keys[1].decode()


def _listen(plan: RunPlan, hosts: Sequence[str]) -> Listen:
    """All interfaces; loopback only when every other host uses a tunnel to this machine."""
    tunnels = all(host in plan.config.hosts and plan.config.hosts[host].tunnel for host in hosts[1:])
    only_tunnels = tunnels and hosts[0] == LOCAL
    return Listen("127.0.0.1" if only_tunnels else "*", _ports(plan.config.learner))


def _ports(learner: LearnerSection) -> tuple[int, int, int]:
    if learner.port == "auto":
        return (0, 0, 0)
    return (learner.port, learner.port + 1, learner.port + 2)
