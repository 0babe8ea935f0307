"""Numbers of cores of hosts: read before a run is planned, for `workers: auto`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from zmqrl.config.hosts import AUTO, filled, is_remote
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import HostFailed, WireError
from zmqrl.messages.lines import handshake
from zmqrl.orchestrators.introduction import SENTINEL
from zmqrl.orchestrators.ssh_commands import introduction_command
from zmqrl.orchestrators.ssh_config import Target, resolve
from zmqrl.orchestrators.ssh_connection import Connection, open_all

ANSWER_S = 15.0
MOST_AT_ONCE = 8


def cores(config: Config) -> dict[str, int]:
    """Physical cores of each SSH host with `workers: auto`; a host that does not answer is left out.

    The reason is reported when it joins.
    """
    asked = {
        name: filled(host, config.defaults)
        for name, host in config.hosts.items()
        if is_remote(name, host) and host.workers == AUTO
    }
    targets = _resolved(config, list(asked))
    if not targets:
        return {}
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        answers = {
            host: pool.submit(_ask, asked[host], found)
            for host, found in open_all(targets, config.ssh)
            if isinstance(found, Connection)
        }
    return {host: count for host, answer in answers.items() if (count := answer.result()) is not None}


def _resolved(config: Config, names: Sequence[str]) -> list[Target]:
    targets = []
    for name in names:
        try:
            targets.append(resolve(name, config.hosts[name], config.defaults))
        except HostFailed:
            continue
    return targets


def _ask(section: HostSection, connection: Connection) -> int | None:
    try:
        done = connection.run(introduction_command(section), ANSWER_S)
        line = next((line for line in done.stdout.decode().splitlines() if line.startswith(SENTINEL)), None)
        return None if line is None else handshake(line.removeprefix(SENTINEL)).cores or None
    except (HostFailed, WireError, UnicodeDecodeError):
        return None
    finally:
        connection.close()
