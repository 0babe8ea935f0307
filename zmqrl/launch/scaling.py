"""More or fewer workers on a host while the run continues: which indexes each host is to hold. Pure."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping

from zmqrl.config.plan import RunPlan, worker_indexes
from zmqrl.errors import ConfigError


class Scaling:
    """An index removed from a host is never used again: the broker has removed its worker."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._held = {host: list(indexes) for host, indexes in worker_indexes(plan.workers).items()}
        self._next = plan.total_workers

    @property
    def total(self) -> int:
        """Workers of all hosts."""
        return sum(len(indexes) for indexes in self._held.values())

    def held(self, host: str) -> tuple[int, ...]:
        """Indexes of a host's workers."""
        return tuple(self._held.get(host, ()))

    def forget(self, host: str) -> None:
        """The host is lost: when it returns, its workers have other indexes."""
        self._held[host] = []

    def scale(self, host: str, workers: int) -> tuple[int, ...]:
        """The indexes that `host` is to hold from now on. ConfigError states the reason for a rejection."""
        self._check(host, workers)
        held = self._held.setdefault(host, [])
        while len(held) < workers:
            held.append(self._next)
            self._next += 1
        del held[workers:]
        return tuple(held)

    def try_all(self, wanted: Mapping[str, int], forgotten: Collection[str] = ()) -> None:
        """Change nothing; ConfigError when one of the changes after another is unavailable.

        `forgotten`: hosts that are forgotten before.
        """
        trial = copy.copy(self)
        trial._held = {host: list(held) for host, held in self._held.items()}
        for host in forgotten:
            trial.forget(host)
        for host, workers in wanted.items():
            trial.scale(host, workers)

    def _check(self, host: str, workers: int) -> None:
        config, others = self._plan.config, self.total - len(self._held.get(host, ()))
        if host not in config.hosts and host != config.learner.host:
            raise ConfigError(f"unknown host {host!r}; hosts of this run: {', '.join(config.hosts)}")
        if config.run.mode == "single":
            raise ConfigError("mode single has no workers to scale")
        if workers and host != config.learner.host and not self._plan.workers.get(host):
            raise ConfigError(
                f"{host}={workers}: {host} was not part of the run at its start: `zmqrl stop` the run, "
                "and resume it with workers on this host"
            )
        if others + workers < 1:
            raise ConfigError(f"{host}={workers} would remove the last worker: `zmqrl stop` ends the run")
        if config.run.mode == "sync" and others + workers > config.env.vector_envs:
            raise ConfigError(
                f"{host}={workers} gives {others + workers} workers for {config.env.vector_envs} vector "
                "envs: in sync each worker needs one"
            )
        fresh = workers - len(self._held.get(host, ()))
        if config.run.mode == "async" and self._next + fresh > self._plan.streams:
            left = self._plan.streams - self._next
            raise ConfigError(f"{host}={workers} needs {fresh} more vector envs, and the run has {left} unused")
