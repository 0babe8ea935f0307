"""Whether a run can have so many workers on each host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zmqrl.config.plan import MOST_WORKERS, RunPlan
from zmqrl.errors import ConfigError
from zmqrl.launch.run.hosts import Hosts
from zmqrl.views.problem import counted


def check_counts(
    plan: RunPlan,
    hosts: Hosts,
    wanted: Mapping[str, int],
    forgotten: Collection[str] = (),
    admitted: Collection[str] = (),
    least: int = 1,
) -> None:
    """Refuse numbers of workers, by host, that the run cannot have.

    Before, the workers of hosts in `forgotten` are removed, and hosts in `admitted` join. `least`: workers that the run
    keeps.

    Raises:
        ConfigError: One of the changes is unavailable.
    """
    counts, next_index = {record.host: len(record.held) for record in hosts}, hosts.next_index
    counts |= dict.fromkeys((*admitted, *forgotten), 0)
    for host in sorted(wanted, key=lambda host: wanted[host] - counts.get(host, 0)):  # those that lose workers first
        _check(plan, counts, next_index, host, wanted[host])
        next_index += max(0, wanted[host] - counts.get(host, 0))
        counts[host] = wanted[host]
    total = sum(counts.values())
    if total < min(1, least):
        what = "no other host has workers, and a run needs one"
        raise ConfigError(what, key=(), value=", ".join(wanted), fix="to end the run: zmqrl stop")
    if total < min(least, hosts.total_workers):
        changes = " ".join(f"{host}={workers}" for host, workers in wanted.items())
        raise ConfigError(
            f"{changes} is refused: {counted(total, 'worker')} would remain, and min_workers is {least}. "
            "To end the run: zmqrl stop"
        )


def _check(plan: RunPlan, counts: Mapping[str, int], next_index: int, host: str, workers: int) -> None:
    config, before = plan.config, counts.get(host, 0)
    total = sum(counts.values()) - before + workers
    if host not in counts and (workers or host not in config.hosts):
        known = ", ".join({**config.hosts, **counts})
        raise ConfigError(f"unknown host {host!r}", fix=f"hosts of this run: {known}")
    if config.mode.in_process:
        raise ConfigError("mode single has no workers to scale")
    if config.mode.deterministic and total > config.env.vector_envs:
        needs = f"in {config.run.mode} each worker needs at least one"
        what = f"gives {total} workers for {config.env.vector_envs} vector envs: {needs}"
        raise ConfigError.about(f"{host}={workers}", what, "set fewer workers")
    if not config.mode.deterministic and total > plan.streams:
        what = f"gives {total} workers, and this run supports at most {plan.streams}"
        fix = "stop it with `zmqrl stop`, and resume it with more workers"
        raise ConfigError.about(f"{host}={workers}", what, fix)
    if next_index + workers - before > MOST_WORKERS:
        raise ConfigError(
            f"the run has already started {next_index} workers, and the limit is {MOST_WORKERS}",
            value=f"{host}={workers}",
            fix="stop it with `zmqrl stop`, and resume it",
        )
