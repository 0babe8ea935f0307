"""How many workers each host is to have, and which. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zmqrl.config.plan import MOST_WORKERS, RunPlan
from zmqrl.errors import ConfigError
from zmqrl.launch.run.hosts import Hosts
from zmqrl.views.problem import counted


class Scaling:
    """Changes `assigned` of the records. An index that was removed from a host is never used again."""

    def __init__(self, plan: RunPlan, hosts: Hosts) -> None:
        """`plan`: of the start; `hosts`: as they are."""
        self._plan, self._hosts = plan, hosts

    @property
    def total(self) -> int:
        """Workers of all hosts."""
        return sum(self._counts().values())

    def scale(self, host: str, workers: int, failed: Collection[int] = ()) -> tuple[int, ...]:
        """The indexes that `host` is to have from now on.

        Args:
            host: Of the run.
            workers: How many it is to have.
            failed: Workers that are not restarted: they are removed first, then the highest indexes.

        Raises:
            ConfigError: The reason for a rejection; nothing was changed.
        """
        self._check(self._counts(), self._hosts.next_index, host, workers)
        held = sorted(self._hosts[host].held, key=lambda index: (index in failed, index))
        added = max(0, workers - len(held))
        first, self._hosts.next_index = self._hosts.next_index, self._hosts.next_index + added
        return self._hosts.expect(host, sorted([*held, *range(first, first + added)][:workers])).assigned

    def try_all(
        self,
        wanted: Mapping[str, int],
        forgotten: Collection[str] = (),
        admitted: Collection[str] = (),
        least: int = 1,
    ) -> list[str]:
        """Change nothing. The hosts of `wanted` in the order in which to scale them: those that lose workers first.

        Args:
            wanted: Workers by host.
            forgotten: Hosts whose workers are removed before.
            admitted: Hosts that are admitted before.
            least: Workers that the run keeps.

        Raises:
            ConfigError: One of the changes is unavailable.
        """
        counts, next_index, before = self._counts(), self._hosts.next_index, self.total
        counts |= dict.fromkeys((*admitted, *forgotten), 0)
        order = sorted(wanted, key=lambda host: wanted[host] - counts.get(host, 0))
        for host in order:
            self._check(counts, next_index, host, wanted[host])
            next_index += max(0, wanted[host] - counts.get(host, 0))
            counts[host] = wanted[host]
        total = sum(counts.values())
        if total < min(1, least):
            what = "no other host has workers, and a run needs one"
            raise ConfigError(what, key=(), value=", ".join(wanted), fix="to end the run: zmqrl stop")
        if total < min(least, before):
            changes = " ".join(f"{host}={workers}" for host, workers in wanted.items())
            raise ConfigError(
                f"{changes} is refused: {counted(total, 'worker')} would remain, and min_workers is {least}. "
                "To end the run: zmqrl stop"
            )
        return order

    def _counts(self) -> dict[str, int]:
        return {record.host: len(record.held) for record in self._hosts}

    def _check(self, counts: Mapping[str, int], next_index: int, host: str, workers: int) -> None:
        config, before = self._plan.config, counts.get(host, 0)
        total = sum(counts.values()) - before + workers
        if host not in counts and (workers or host not in config.hosts):
            known = ", ".join({**config.hosts, **counts})
            raise ConfigError(f"unknown host {host!r}", fix=f"hosts of this run: {known}")
        if config.mode.in_process:
            raise ConfigError("mode single has no workers to scale")
        if config.mode.deterministic and total > config.env.vector_envs:
            envs = config.env.vector_envs
            raise ConfigError(
                f"gives {total} workers for {envs} vector envs: in sync each worker needs at least one",
                value=f"{host}={workers}",
                is_subject=True,
                fix="set fewer workers",
            )
        if not config.mode.deterministic and total > self._plan.streams:
            raise ConfigError(
                f"gives {total} workers, and this run supports at most {self._plan.streams}",
                value=f"{host}={workers}",
                is_subject=True,
                fix="stop it with `zmqrl stop`, and resume it with more workers",
            )
        if next_index + workers - before > MOST_WORKERS:
            raise ConfigError(
                f"the run has already started {next_index} workers, and the limit is {MOST_WORKERS}",
                value=f"{host}={workers}",
                fix="stop it with `zmqrl stop`, and resume it",
            )
