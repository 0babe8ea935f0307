"""The checks of each host, from the configuration."""

from __future__ import annotations

import json
from pathlib import Path

from zmqrl.config.codec import replace, to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, HostSection
from zmqrl.data_stores.make import shared_directory
from zmqrl.doctor.examination import HostRequests
from zmqrl.messages.doctor_requests import Examine, Listen, Reach
from zmqrl.orchestrators.make import access_of

PORTS = 3
"""segments, notices, control."""


def examined_hosts(config: Config) -> dict[str, HostSection]:
    """Hosts to check, filled from the defaults: those of the file and the learner's; none that are manual."""
    listed = {config.learner.host: HostSection(workers=0), **config.hosts}
    access = access_of(replace(config, hosts=listed), listed)
    return {name: access.section(name) for name, host in listed.items() if not host.manual}


def host_requests(config: Config, code: str | None, env_limit_s: float) -> dict[str, HostRequests]:
    """`code`: the user's own modules, packed; they are sent to hosts other than this one."""
    hosts, learner = examined_hosts(config), config.learner.host
    reaching = {name for name, host in hosts.items() if _reaches(config, name, host)}
    found = {}
    for name, host in hosts.items():
        listen = Listen(_ports(config)) if name == learner and reaching else None
        examine = Examine(
            workdir=str(Path.cwd()) if name == LOCAL else str(host.workdir),
            store=shared_directory(config.store) or (_run_folder(name, host) if name == learner else None),
            env=json.dumps(to_json(config.env)),
            mode=config.run.mode,
            seed=str(config.run.seed),
            env_limit_s=env_limit_s,
            listen=listen,
            code=None if name == LOCAL else code,
        )
        watches = shared_directory(config.store) is not None and name != learner and host.workers != 0
        found[name] = HostRequests(examine, _reach(config) if name in reaching else None, watches)
    return found


def _reach(config: Config) -> Reach:
    """Ports and key are those that the learner's host reports."""
    return Reach((config.learner.address,) if config.learner.address else (), (), "")


def _reaches(config: Config, name: str, host: HostSection) -> bool:
    return name != config.learner.host and host.workers != 0 and not config.mode.in_process


def _ports(config: Config) -> tuple[int, ...]:
    port = config.learner.port
    return (0,) * PORTS if port == "auto" else tuple(range(port, port + PORTS))


def _run_folder(name: str, host: HostSection) -> str:
    """Above the checkpoints of a run without `store.path`."""
    return str(Path.cwd() / "runs") if name == LOCAL else f"{host.workdir}/runs"
