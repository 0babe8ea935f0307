"""What the kernel is asked for: network namespaces that need no name and end with their holder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence

from tests.support.waiting import WAIT_S

CLONE_NEWNET = 0x40000000
TOOLS = ("ip", "nft", "nsenter", "unshare")


class LabUnavailable(Exception):
    """This machine cannot carry such a lab; the message says why and what to install."""


class Network:
    """A network namespace, held by a descriptor of this process."""

    def __init__(self) -> None:
        made: list[int | OSError] = []
        thread = threading.Thread(target=lambda: made.append(_make()))
        thread.start()
        thread.join(WAIT_S)
        if not made or isinstance(made[0], OSError):
            raise LabUnavailable(f"no network namespace can be made here: {made}")
        self.fd = made[0]
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        """Names it for `nsenter --net=` and for `setns`, as long as this process lives."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` with this network."""
        return ["nsenter", f"--net={self.path}", "--", *argv]

    def run(self, *argv: str, text: str = "") -> str:
        """Run a command with this network; its output. AssertionError, with what it said, when it fails."""
        done = subprocess.run(self.command(argv), input=text, text=True, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0, f"{argv}: exit code {done.returncode}: {done.stderr}"
        return done.stdout

    def ip(self, *lines: str) -> None:
        """Run lines of `ip -batch`."""
        self.run("ip", "-batch", "-", text="\n".join(lines) + "\n")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and the threads and processes that it starts, make their sockets in this network."""
        with _own() as before:
            _enter(self.fd)
            try:
                yield
            finally:
                _enter(before)

    def close(self) -> None:
        os.close(self.fd)


def check() -> None:
    """LabUnavailable when hosts with namespaces cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise LabUnavailable(f"{', '.join(missing)} missing: apt-get install iproute2 nftables util-linux")
    if os.geteuid() != 0:
        raise LabUnavailable("namespaces need root")
    trial = "mount -t tmpfs none /tmp && ip link add br0 type bridge"
    namespaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork"]
    done = subprocess.run(["unshare", *namespaces, "sh", "-c", trial], capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        raise LabUnavailable(f"namespaces are refused here: {done.stderr.strip()}")


def _make() -> int | OSError:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return os.open(_thread_network(), os.O_RDONLY | os.O_CLOEXEC)


def _enter(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def _own() -> Iterator[int]:
    fd = os.open(_thread_network(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _thread_network() -> str:
    return f"/proc/self/task/{threading.get_native_id()}/ns/net"
