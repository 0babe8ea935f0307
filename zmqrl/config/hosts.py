"""The hosts of a run: ranges such as `node[01:16]`, and which kinds of host this version can use."""

from __future__ import annotations

import re
from collections.abc import Mapping

import psutil

from zmqrl.config.sections import DefaultsSection, HostSection
from zmqrl.config.yaml_source import Branch, Node
from zmqrl.errors import ConfigError

LOCAL = "local"
MOST_HOSTS = 1024
REMOTE_HOSTS = False
"""Whether hosts other than this machine can be used."""
_RANGE = re.compile(r"^([^\[\]]*)\[(\d+):(\d+)\]([^\[\]]*)$")


def expand(hosts: Node | None) -> Node | None:
    """`node[01:03]` becomes node01, node02, node03 (the last one too, with the zeros of the first)."""
    if not isinstance(hosts, Branch):
        return hosts
    children: dict[str, Node] = {}
    for key, node in hosts.children.items():
        for name in _names(key, node):
            if name in children:
                raise ConfigError(f"{node.source}: hosts.{key}: host {name!r} stands twice")
            children[name] = node
    return Branch(hosts.source, children)


def _names(key: str, node: Node) -> list[str]:
    if "[" not in key and "]" not in key:
        return [key]
    match = _RANGE.match(key)
    if match is None:
        raise ConfigError(f"{node.source}: hosts.{key}: write a range as node[01:16]")
    before, first, last, after = match.groups()
    count = int(last) - int(first) + 1
    if not 1 <= count <= MOST_HOSTS:
        raise ConfigError(f"{node.source}: hosts.{key}: the range has {count} hosts; 1 to {MOST_HOSTS} are allowed")
    return [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)]


def workers_of(hosts: Mapping[str, HostSection], defaults: DefaultsSection) -> dict[str, int]:
    """Workers per host with `auto` resolved: this machine's physical cores but one, at least one."""
    found = {}
    for name, host in hosts.items():
        asked = defaults.workers if host.workers is None else host.workers
        found[name] = physical_workers() if asked == "auto" else asked
    return found


def physical_workers() -> int:
    """What `workers: auto` means on this machine."""
    return max(1, (psutil.cpu_count(logical=False) or psutil.cpu_count() or 2) - 1)


def refuse_remote(workers: Mapping[str, int], learner_host: str) -> tuple[str, str] | None:
    """Key and what is wrong with it, when a host other than this machine is asked for; else None."""
    if REMOTE_HOSTS:
        return None
    if learner_host != LOCAL:
        return "learner.host", f"{learner_host!r}: remote hosts are not supported by this version; write local"
    for name, count in workers.items():
        if name != LOCAL and count > 0:
            return f"hosts.{name}", f"{count} workers: remote hosts are not supported by this version; list only local"
    return None
