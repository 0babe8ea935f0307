"""The handshake of a host agent: its identity and versions, sent before it receives anything, and their check."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache

from zmqrl.capacity import usable_cores
from zmqrl.config.sections import Config
from zmqrl.installed import installed
from zmqrl.messages.command import EXAMINATION
from zmqrl.messages.frames import PROTOCOL
from zmqrl.messages.lines import line_of
from zmqrl.messages.orchestrator import Handshake
from zmqrl.supervision.host_lock import HostLock
from zmqrl.supervision.process_table import identify
from zmqrl.types import MODES, ModeName

SENTINEL = "ZMQRL-AGENT 1 "
"""Begins the first line; everything before it is noise of a shell."""
ONNX = "onnxruntime"
PACKAGES = ("zmqrl", "pyzmq", "msgpack", "msgspec", "numpy", "torch", "gymnasium", "psutil", ONNX)
SLURM_NODE = "SLURMD_NODENAME"
"""Slurm's name of the node, where it differs from the machine's."""
MOST_SKEW_S = 30.0
MUST_AGREE = ("zmqrl", "protocol", "byteorder")
"""The boot line and every message depend on these."""
MAJOR_AGREES = ("numpy", "msgpack", "msgspec", "pyzmq", "torch")
MINOR_AGREES = ("python", "gymnasium")
"""Where another one is likely to give other bits, or another env."""
ORDERED_STORES = ("x86_64", "AMD64")
"""Processors whose stores other cores see in program order, as `platform.machine` names them."""


def handshake_line(public: str = "") -> str:
    """The agent's first line, with its end. `public`: of its CURVE pair; none where only the host is of interest."""
    me = identify(os.getpid())
    sent = Handshake(
        versions=versions(),
        pid=os.getpid(),
        time=time.time(),
        start_time=None if me is None else me.start_time,
        node=os.environ.get(SLURM_NODE) or socket.gethostname(),
        user=_user(),
        cores=usable_cores(),
        public=public,
        python=sys.executable,
        held=HostLock().held_workers(),
    )
    return SENTINEL + line_of(sent).decode()


@cache
def versions() -> dict[str, str | None]:
    """Versions of everything that two hosts of a run must agree on, or should."""
    found: dict[str, str | None] = {
        "protocol": str(PROTOCOL),
        "examination": str(EXAMINATION),
        "python": ".".join(map(str, sys.version_info[:3])),
        "byteorder": sys.byteorder,
        "machine": os.uname().machine,
    }
    return found | {package: installed(package) for package in PACKAGES}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


if __name__ == "__main__":
    sys.stdout.write(handshake_line())


def processor_refusal(machine: str | None, mode: ModeName) -> str | None:
    """Why a host with this processor cannot participate in `mode`; None when it can, or does not name its processor.

    In the modes with workers, processes write payload, seal and record into shared memory without barriers.
    """
    if MODES[mode].in_process or machine is None or machine in ORDERED_STORES:
        return None
    return (
        f"the processor is {machine}, and run.mode {mode} needs x86-64: other processors may reorder the stores by "
        "which processes share segments and weights; run.mode single is supported"
    )


def missing_runtime(config: Config, there: Mapping[str, str | None]) -> str | None:
    """Why workers of a host with these versions cannot act; None when they can. `setup` installs what is missing."""
    if config.network.runtime != "onnx" or there.get(ONNX, "") is not None:
        return None
    return f"{ONNX} is missing, with which workers act (network.runtime: onnx)"


def refusals(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """What the remote host has, and cannot participate with."""
    return differences(here, there, MUST_AGREE)


def differences(here: Mapping[str, str | None], there: Mapping[str, str | None], names: Iterable[str]) -> list[str]:
    """What the remote host has another version of, or none, among `names`."""
    return [
        f"{name} {there.get(name) or 'none'} there, {here.get(name)} here"
        for name in names
        if there.get(name) != here.get(name)
    ]


def warnings(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> list[str]:
    """What differs and may do."""
    parts = [*((name, 1) for name in MAJOR_AGREES), *((name, 2) for name in MINOR_AGREES)]
    return [
        f"{name} {there.get(name) or 'none'} there, {here.get(name)} here"
        for name, count in parts
        if _head(there.get(name), count) != _head(here.get(name), count)
    ]


def other_bits(digests: Mapping[str, str]) -> str:
    """Hosts on which acting computes other bits than on most, by their acting digests; empty where none does."""
    groups: dict[str, list[str]] = {}
    for host in sorted(digests):
        groups.setdefault(digests[host], []).append(host)
    most, *others = sorted(groups.values(), key=lambda group: -len(group)) or [[]]
    if not others:
        return ""
    differ = sorted(host for group in others for host in group)
    computes = "computes" if len(differ) == 1 else "compute"
    return f"{', '.join(differ)}: acting {computes} other bits there than on {', '.join(most)}"


def clock_warnings(there: float, here: float) -> list[str]:
    """What two clocks, in Unix seconds, differ by when it is more than the delay between them can explain."""
    ahead_s = there - here
    if abs(ahead_s) <= MOST_SKEW_S:
        return []
    side = "ahead of" if ahead_s > 0 else "behind"
    return [f"the host's clock is {abs(ahead_s):.0f} s {side} this machine's; set it: sudo timedatectl set-ntp true"]


def _head(version: str | None, count: int) -> list[str]:
    return (version or "").split(".")[:count]
