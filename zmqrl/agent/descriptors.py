"""The open descriptors that a host needs for its part of a run.

libzmq ends a process that cannot accept a connection over ipc, and polls without pause where it is one over tcp: a host
with too few descriptors is refused at its start.
"""

from __future__ import annotations

import resource

from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError

AGENT_PER_PROCESS = 4
"""Of each child: pidfd, stdin, events, wake."""
BROKER_PER_WORKER, BROKER_PER_AGENT = 3, 2
"""Connections."""
OTHERS = 64
"""All that does not depend on the number of workers."""


def check_descriptors(boot: Boot) -> None:
    """`boot`: of a host agent, whose limit its children inherit.

    Raises:
        ConfigError: The agent or the broker of this host needs more descriptors than the limit allows.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    workers, plan = len(boot.workers), boot.plan
    needed = {f"the host agent, with {workers} workers": OTHERS + AGENT_PER_PROCESS * (workers + 3)}
    if boot.host == plan.config.learner.host:
        connections = BROKER_PER_WORKER * plan.total_workers + BROKER_PER_AGENT * len(plan.workers)
        needed[f"the broker, with {plan.total_workers} workers"] = OTHERS + connections
    role, most = max(needed.items(), key=lambda item: item[1])
    if limit != resource.RLIM_INFINITY and most > limit:
        raise ConfigError(
            f"{boot.host}: {role}, needs {most:,} file descriptors, and the limit is {limit:,} (ulimit -Hn); "
            "raise it (nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd unit), or set fewer workers"
        )
