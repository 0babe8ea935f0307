"""A real NFS server, and clients with kernels of their own: User-Mode-Linux guests on this machine's file system.

The server is nfs-ganesha. What a kernel's NFS client does (close-to-open, names remembered as absent, ESTALE) cannot be
seen without one, and this machine's kernel may have none. Needs root and the packages of `NEEDED`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.waiting import WAIT_S, until

from .kernel import LabUnavailable, Network, check

NEEDED = {
    "ganesha.nfsd": "nfs-ganesha nfs-ganesha-vfs",
    "linux.uml": "user-mode-linux",
    "mount.nfs4": "nfs-common",
    "modprobe": "kmod",
    "cc": "gcc libc6-dev",
    "taskset": "util-linux",
}
SERVER = "10.78.0.1"
PLUGINS = "/usr/lib/x86_64-linux-gnu/ganesha"
MOUNT = "/mnt/store"

CONFIG = """
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Bind_addr = {server}; NFS_Port = 2049;
 Plugins_Dir = {plugins}; }}
NFSV4 {{ Grace_Period = 1; Lease_Lifetime = 10; Graceless = true; RecoveryBackend = fs; Minor_Versions = 1,2; }}
EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /data; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
 Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}
"""
INIT = """#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run
mount -t proc proc /proc; echo {name} > /proc/sys/kernel/hostname; mount -t tmpfs run /run; mount -t tmpfs mnt /mnt
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /run/m/lib/modules {mount}; ln -s /usr/lib/uml/modules/$(uname -r) /run/m/lib/modules/$(uname -r)
modprobe -d /run/m nfsv4
ip link set lo up; ip addr add {address}/24 dev vec0; ip link set vec0 up
mount -t nfs4 -o vers=4.2 {server}:/data {mount} || echo no mount
stty raw -echo
exec {command}
"""


class NfsServer:
    """Exports `folder`; end with `close`."""

    def __init__(self, folder: Path) -> None:
        check()
        missing = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
        if missing:
            raise LabUnavailable(f"apt-get install {' '.join(missing)}")
        self.place = Path(tempfile.mkdtemp(prefix="zmqrl-nfs-", dir="/var/tmp"))
        self.guest_library = self.place / "uml_xstate.so"
        source = Path(__file__).with_name("uml_xstate.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.guest_library, source], check=True, timeout=WAIT_S)
        self.network = Network()
        self.network.ip(
            "link add br0 type bridge", "link set br0 up", "link set lo up", f"addr add {SERVER}/24 dev br0"
        )
        config = self.place / "ganesha.conf"
        config.write_text(CONFIG.format(server=SERVER, plugins=PLUGINS, path=folder))
        files = ["-f", str(config), "-L", str(self.place / "log"), "-p", str(self.place / "pid")]
        self._process = self._start(["ganesha.nfsd", "-F", *files])
        limit = time.monotonic() + WAIT_S
        while not self._answers():
            if time.monotonic() > limit or self._process.poll() is not None:
                self.close()
                raise LabUnavailable("nfs-ganesha does not come up here")
            time.sleep(0.1)

    def pause(self) -> None:
        """It is away: nothing is answered until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)
        # Each thread stops when it is next scheduled; the parent is told after the last one.
        until(lambda: os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG))

    def go_on(self) -> None:
        """It is back."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it; its guests must have ended."""
        self.go_on()
        self._process.kill()
        self._process.wait(WAIT_S)
        self.network.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def _start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen(self.network.command(argv), stdin=null, stdout=null, stderr=null)

    def _answers(self) -> bool:
        with self.network.inside():
            try:
                socket.create_connection((SERVER, 2049), 1.0).close()
            except OSError:
                return False
        return True


class Guest:
    """A machine with the export at `MOUNT` that runs one program, which is spoken with line by line."""

    def __init__(self, server: NfsServer, number: int, command: str) -> None:
        tap, place = f"tap{number}", server.place / f"guest{number}"
        server.network.ip(f"tuntap add {tap} mode tap", f"link set {tap} master br0 up")
        place.mkdir()
        init = place / "init"
        init.write_text(
            INIT.format(
                mount=MOUNT, server=SERVER, address=f"10.78.0.{10 + number}", command=command, name=f"guest{number}"
            )
        )
        init.chmod(0o755)
        words = ["mem=768M", f"umid=zmqrl{os.getpid()}-{number}", f"uml_dir={place}/", "root=none", "rootfstype=hostfs"]
        words += ["rootflags=/", "ro", "quiet", f"init={init}", f"vec0:transport=tap,ifname={tap},depth=128,gro=1"]
        words += ["con0=fd:0,fd:1", "con=null", "ssl=null"]
        # One processor: a guest is several processes in turn, and waking another processor takes longer than a turn.
        processors = sorted(os.sched_getaffinity(0))
        one = ["taskset", "-c", str(processors[number % len(processors)])]
        self._process = subprocess.Popen(
            server.network.command([*one, "linux.uml", *words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LD_PRELOAD": str(server.guest_library)},
            start_new_session=True,  # it is several processes, which end as a group
        )

    def say(self, line: str) -> None:
        """A line to the program."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, begin: str) -> str:
        """The next line that begins so, without that; what the kernel says is passed over."""
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").strip()
            if line.startswith(begin):
                return line.removeprefix(begin).strip()
        raise AssertionError(f"the guest ended before it said {begin!r}")

    def ask(self, line: str, begin: str) -> str:
        """Say a line, hear the answer."""
        self.say(line)
        return self.hear(begin)

    def close(self) -> None:
        """Switch it off."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
