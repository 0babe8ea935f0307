"""What the tests of the ssh connection share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.lab import Host, Lab, Process
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.sections import DefaultsSection, HostSection, SshSection
from zmqrl.ssh.clients import make_client
from zmqrl.ssh.config import Target, resolve
from zmqrl.ssh.connection import Connection

SSH = SshSection(connect_timeout_s=WAIT_S / 2)


def target_of(lab: Lab, index: int, **changes: object) -> Target:
    found = resolve(lab.hosts[index].name, HostSection(), DefaultsSection(), lab.ssh_config)
    return replace(found, **changes)  # type: ignore[arg-type]


@contextlib.contextmanager
def connected(target: Target, ssh: SshSection = SSH) -> Iterator[Connection]:
    connection = make_client(ssh).open(target)
    try:
        yield connection
    finally:
        connection.close()


def sessions(host: Host) -> list[Process]:
    """The sshd processes of logins that last."""
    found = [process for process in host.processes() if process.argv[0].startswith("sshd: ")]
    return [process for process in found if not {"[listener]", "[priv]"} & set(" ".join(process.argv).split())]
