"""Hosts that join a live run: which of a request are new, and whether the run can take them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from zmqrl.config.codec import replace
from zmqrl.config.host_checks import check_hosts
from zmqrl.config.plan import Listen
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import ConfigError
from zmqrl.launch.hosts import Hosts
from zmqrl.messages.files import ScaleRequest

Refusal: TypeAlias = Callable[[str, HostSection], str | None]
"""`Orchestrator.refusal`."""


def sections_to_admit(request: ScaleRequest, config: Config, hosts: Hosts, refusal: Refusal) -> dict[str, HostSection]:
    """The sections of the hosts that the run admits with this request; nothing is changed.

    Args:
        request: From another command.
        config: The configuration of the run, with all hosts so far.
        hosts: As they are now.
        refusal: Why a host cannot be added, by the orchestrator of the run.

    Raises:
        ConfigError: A host is part of the run already, or cannot become part of it.
    """
    known = {row.host: row for row in hosts}
    idle = {host for host, workers in request.scale.items() if workers and host in config.hosts and host not in known}
    found = {**{host: config.hosts[host] for host in idle}, **request.hosts}
    for host, section in found.items():
        if host not in request.scale:
            raise ConfigError(f"{host}: a request that adds a host states its number of workers")
        if host in known and not known[host].is_gone:
            raise ConfigError(f"{host} is part of this run already ({known[host].state}); use `zmqrl scale`")
        _check_way(host, section, hosts.learner.boot.listen, refusal)
    if found:
        check_hosts(replace(config, hosts={**config.hosts, **found}))
    return found


def _check_way(host: str, section: HostSection, listen: Listen | None, refusal: Refusal) -> None:
    """ConfigError when the host could not connect to the broker of the run, or not be started."""
    resume = f"stop the run with `zmqrl stop` and resume it with workers on {host}"
    why = None if section.manual else refusal(host, section)
    if why is None and listen is None:
        why = "the run was started on one host, and its broker does not accept connections from other hosts"
    if why is not None:
        raise ConfigError(f"{host} cannot join this run: {why}; {resume}")
    if listen is not None and listen.address != "*" and not section.tunnel:
        raise ConfigError(
            f"{host} cannot join this run: the broker listens only on {listen.address}, because all initial hosts use "
            f"tunnels; set hosts.{host}.tunnel: true, or {resume}"
        )


def with_hosts(config: Config, sections: Mapping[str, HostSection], workers: Mapping[str, int]) -> Config:
    """`config` with these hosts and their numbers of workers."""
    listed = {host: replace(section, workers=workers[host]) for host, section in sections.items()}
    return replace(config, hosts={**config.hosts, **listed})
