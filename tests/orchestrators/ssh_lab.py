"""What the tests of the ssh connection share."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from lab import Host, Lab, Process

from zmqrl.config.sections import DefaultsSection, HostSection, SshSection
from zmqrl.orchestrators.ssh_config import Target, resolve
from zmqrl.orchestrators.ssh_connection import Connection

SSH = SshSection(connect_timeout_s=5.0)
WAIT_S = 10.0


def target_of(lab: Lab, index: int, **changes: object) -> Target:
    found = resolve(lab.hosts[index].name, HostSection(), DefaultsSection(), lab.ssh_config)
    return replace(found, **changes)  # type: ignore[arg-type]


@contextlib.contextmanager
def connected(target: Target, ssh: SshSection = SSH) -> Iterator[Connection]:
    connection = Connection.open(target, ssh)
    try:
        yield connection
    finally:
        connection.close()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sessions(host: Host) -> list[Process]:
    """The sshd processes of logins that last."""
    found = [process for process in host.processes() if process.argv[0].startswith("sshd: ")]
    return [process for process in found if not {"[listener]", "[priv]"} & set(" ".join(process.argv).split())]
