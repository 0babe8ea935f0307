"""`--on HOST`: the configuration of a run as the launcher on another host receives it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zmqrl.config.codec import replace, to_json
from zmqrl.config.host_checks import check_hosts
from zmqrl.config.hosts import LOCAL, filled
from zmqrl.config.kinds import flat
from zmqrl.config.presets import presets
from zmqrl.config.sections import Config, HostSection
from zmqrl.config.yaml_source import shown
from zmqrl.errors import ConfigError

OF_CONNECTIONS = ("run.mode", "hosts", "defaults", "learner", "ssh", "security", "limits", "orchestrator")
"""What decides whether hosts can be reached."""
KEPT = ("workers", "cores", "groups", "worker_device", "only", "yield_when")
"""Keys of a host that still apply where it is `local`."""
_LAST_HOP = re.compile(r"(?:[^@,]+@)?(\[[^\]]+\]|[^:@,]+)(?::\d+)?$")


def on_local() -> ConfigError:
    """`--on local`."""
    fix = "omit --on, or name another host"
    return ConfigError(f"{LOCAL} is this machine", key=("--on",), value=LOCAL, fix=fix)


def on_host(config: Config, host: str, is_auto_here: bool = False) -> Config:
    """`config` for a launcher on `host`, which is `local` there; the other hosts are reached from it.

    Where `config` does not list `host`, its `local` already means the launcher's machine. `is_auto_here`: `local` has
    `workers: auto`, which `config` has as the number of this machine.

    Raises:
        ConfigError: `host` cannot have the launcher, or both it and `local` have workers.
    """
    listed, local = config.hosts.get(host), config.hosts.get(LOCAL)
    if host == LOCAL:
        raise on_local()
    if listed is not None and listed.manual:
        what = f"hosts.{host}.manual: true: SSH does not reach it"
        raise ConfigError(what, key=("--on",), value=host, fix="name another host")
    if listed is not None and local is not None and local.workers != 0:
        raise ConfigError(
            f"with --on {host} the launcher runs on {host}, and this machine is not part of the run",
            key=("hosts", LOCAL, "workers"),
            value=shown(local.workers),
            fix=f"set hosts.{LOCAL}.workers: 0 and hosts.{host}.workers",
            others=(("hosts", host, "workers"),),
        )
    if listed is not None:
        here: HostSection | None = replace(HostSection(), **{name: getattr(listed, name) for name in KEPT})
    else:
        here = replace(local, workers="auto") if local is not None and is_auto_here else local
    others = {name: _seen_from(host, listed, each) for name, each in config.hosts.items() if name not in (host, LOCAL)}
    defaults = config.defaults
    if defaults.jump is not None and _is_hop(defaults.jump, host, listed):
        defaults = replace(defaults, jump=None)
    learner = replace(config.learner, host=LOCAL) if config.learner.host == host else config.learner
    hosts = others if here is None else {LOCAL: here, **others}
    found = replace(config, hosts=hosts, defaults=defaults, learner=learner, inventory=None)
    check_hosts(found)
    return found


def login_of(config: Config, host: str) -> HostSection:
    """How `host` is logged into and how zmqrl is started there; a host that is not listed has the defaults."""
    return filled(config.hosts.get(host, HostSection()), config.defaults)


def text_of(config: Config, code: str | None, keeps_code: bool = False) -> str:
    """The file that the launcher reads there, of a configuration by `on_host`.

    `code`: the folder there that has the modules of `code.sync`. `keeps_code`: it is left out if it names no modules: a
    resumed run keeps its own.
    """
    preset = config.run.preset if config.run.preset in presets() else None  # a path is of this machine
    data = flat(to_json(replace(config, run=replace(config.run, preset=preset, init_from=None))))
    if keeps_code and not config.code.sync:
        del data["code"]
    else:
        data["code"] = {**data["code"], "sync": [f"{code}/{Path(path).name}" for path in config.code.sync]}
    return _yaml(data)


def connections_of(config: Config) -> str:
    """A file with only what decides whether hosts can be reached; no module of the user's is needed to read it."""
    data = flat(to_json(config))
    found: dict[str, Any] = {}
    for key in OF_CONNECTIONS:
        section, _, inner = key.partition(".")
        found[section] = {inner: data[section][inner]} if inner else data[section]
    return _yaml(found)


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False)


def _seen_from(host: str, listed: HostSection | None, other: HostSection) -> HostSection:
    """Another host without a jump over the launcher's."""
    if other.jump is None or not _is_hop(other.jump, host, listed):
        return other
    return replace(other, jump=None)


def _is_hop(jump: str, host: str, listed: HostSection | None) -> bool:
    """Whether `jump` is only `host`."""
    names = {host} if listed is None else {host, listed.ssh}
    hop = _LAST_HOP.fullmatch(jump)
    return hop is not None and hop[1].strip("[]") in names
