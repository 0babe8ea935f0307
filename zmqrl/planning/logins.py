"""Which machine a name of `hosts` leads to: each machine is listed once, and has one host agent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from zmqrl.config.codec import replace
from zmqrl.config.hosts import is_remote
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.orchestrators.make import is_by_ssh
from zmqrl.ssh.clients import RESOLVERS
from zmqrl.ssh.config import Target, resolve

Login: TypeAlias = tuple[object, ...]
"""Address and the way to it. Two that are equal lead to one machine."""


def check_participants(config: Config) -> None:
    """`check_logins` for all hosts of a run that is to start: those with workers, and the learner's."""
    parts = {name: host for name, host in config.hosts.items() if host.workers != 0 or name == config.learner.host}
    check_logins(replace(config, hosts=parts), list(parts))


def check_logins(config: Config, hosts: Sequence[str]) -> None:
    """ConfigError when one of `hosts` is another host of `config` under a second name.

    Names are resolved, by ~/.ssh/config and to addresses. One that cannot be is left out: connecting to it reports why.
    `local` is not compared: a file for many machines, with the learner on `local`, also lists the one that starts it.
    """
    if not is_by_ssh(config):
        return
    before = [host for host in config.hosts if host not in hosts]
    remote = [host for host in [*before, *hosts] if is_remote(host, config.hosts[host])]
    known: dict[Login, str] = {}
    with ThreadPoolExecutor(RESOLVERS, thread_name_prefix="ssh -G") as pool:
        found = list(pool.map(partial(_target, config), remote))
        logins = list(pool.map(_logins, found))
    for host, target, places in zip(remote, found, logins, strict=True):
        for place in places:
            other = known.setdefault(place, host)
            if other != host and host in hosts and target is not None:
                what = f"{host} and {other} are the same host ({target.user}@{target.address})"
                raise ConfigError(what, key=(), fix=f"use {other}")


def _target(config: Config, host: str) -> Target | None:
    try:
        return resolve(host, config.hosts[host], config.defaults)
    except HostFailed:
        return None


def _logins(target: Target | None) -> list[Login]:
    """One for each address. Two names with different HostKeyAlias are several servers on one machine, as for ssh."""
    if target is None:
        return []
    jump = None if target.jump is None else target.jump.login_command()
    way = (target.port, target.user, jump, target.proxy_command, target.host_key_alias)
    name = target.hostname.lower()
    addresses = {name} if jump or target.proxy_command else _addresses(name) or {name}
    return [(address, *way) for address in sorted(addresses)]


def _addresses(name: str) -> set[str]:
    """Addresses of a name, as this machine looks it up; none: it has none."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
