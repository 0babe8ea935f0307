"""The handshake of a host agent, sent before it receives anything: its identity and installed versions."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

from zmqrl.messages.agent import Handshake
from zmqrl.messages.frames import PROTOCOL
from zmqrl.messages.lines import line_of
from zmqrl.supervision.process_table import identify

SENTINEL = "ZMQRL-AGENT 1 "
"""Begins the first line; everything before it is noise of a shell."""
PACKAGES = ("zmqrl", "pyzmq", "msgpack", "msgspec", "numpy", "torch", "gymnasium")
SLURM_NODE = "SLURMD_NODENAME"
"""Slurm's name of the node, where it differs from the machine's."""
TOPOLOGY = "cpu[0-9]*/topology/thread_siblings_list"


def introduction(public: str = "") -> str:
    """The agent's first line, with its end. `public`: of its CURVE pair; none where only the host is asked about."""
    me = identify(os.getpid())
    said = Handshake(
        versions=versions(),
        pid=os.getpid(),
        time=time.time(),
        start_time=None if me is None else me.start_time,
        node=os.environ.get(SLURM_NODE) or socket.gethostname(),
        user=_user(),
        cores=physical_cores(Path("/sys/devices/system/cpu")),
        public=public,
    )
    return SENTINEL + line_of(said).decode()


def versions() -> dict[str, str | None]:
    """Of everything that two hosts of a run must agree on, or should."""
    found: dict[str, str | None] = {
        "protocol": str(PROTOCOL),
        "python": ".".join(map(str, sys.version_info[:3])),
        "byteorder": sys.byteorder,
        "machine": platform.machine(),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def physical_cores(cpus: Path) -> int:
    """Cores that this process may use, two threads of one core counted once."""
    usable = os.sched_getaffinity(0)
    siblings = {
        path.read_text().strip() for path in cpus.glob(TOPOLOGY) if int(path.parts[-3].removeprefix("cpu")) in usable
    }
    return len(siblings) or len(usable)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


if __name__ == "__main__":
    sys.stdout.write(introduction())
