"""The client of `ssh.client`, and the hosts of a configuration connected to by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from zmqrl.config.sections import Config, HostSection, SshSection
from zmqrl.errors import HostFailed
from zmqrl.ssh.config import Target, resolve
from zmqrl.ssh.connection import SILENT_S, Client, Connection, open_all

RESOLVERS = 8
"""`ssh -G` at once."""


def make_client(ssh: SshSection, silence_s: float = SILENT_S) -> Client:
    """The client. ConfigError when it cannot work on this machine.

    Args:
        ssh: The section.
        silence_s: As of `Client`.
    """
    if ssh.client == "openssh":
        from zmqrl.ssh.openssh_client import OpensshClient

        return OpensshClient(ssh, silence_s)
    from zmqrl.ssh.paramiko_client import ParamikoClient

    return ParamikoClient(ssh, silence_s)


def connect(config: Config, host: str) -> Connection:
    """A connection to one host. HostFailed, ConfigError."""
    client = make_client(config.ssh)
    return client.open(resolve(host, config.hosts.get(host, HostSection()), config.defaults))


def connect_all(
    config: Config, hosts: Sequence[str], silence_s: float = SILENT_S, most: int = 8
) -> Iterator[tuple[str, Connection | HostFailed]]:
    """Connect to hosts, at most `most` at once; each as soon as it is connected, or with the reason why it is not.

    The caller closes the connections. ConfigError as of `make_client`.
    """
    client = make_client(config.ssh, silence_s)

    def resolved(host: str) -> Target | HostFailed:
        try:
            return resolve(host, config.hosts.get(host, HostSection()), config.defaults)
        except HostFailed as error:
            return error

    targets = []
    with ThreadPoolExecutor(RESOLVERS, thread_name_prefix="ssh -G") as pool:
        for host, found in zip(hosts, pool.map(resolved, hosts), strict=True):
            if isinstance(found, HostFailed):
                yield host, found
            else:
                targets.append(found)
    yield from open_all(client, targets, most)
