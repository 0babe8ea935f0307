"""One host: its sshd, its processes, and what can befall it."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S

from .kernel import Network

ROOT = Path(__file__).parents[2]
"""The repository: far Pythons import zmqrl from here."""
INIT = str(Path(__file__).with_name("init.py"))
SSHD = "/usr/sbin/sshd"
HOME = pwd.getpwuid(os.getuid()).pw_dir
PRIVATE = {"tmp": "/tmp", "run": "/run", "home": HOME}
"""Folders of the host's own. The home too: a shell's start-up files there may wait for a lock (pyenv's do)."""
KERNELS = ("OPENBLAS_CORETYPE", "NPY_ENABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY")
"""Variables by which numpy and torch choose kernels. SSH does not pass them, and other kernels compute other bits."""
NAMESPACES = ("--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private")


@dataclass(frozen=True)
class Process:
    """A process of a host, with its pid as this machine sees it."""

    pid: int
    argv: tuple[str, ...]


class Host:
    """Made by the lab; `network` is None where the machine allows no namespaces."""

    def __init__(self, name: str, address: str, port: int, folder: Path, network: Network | None) -> None:
        self.name, self.address, self.port, self.folder = name, address, port, folder
        self.network = network
        self.tmp = folder / "tmp"
        """The host's /tmp, as seen from here."""
        self._init: subprocess.Popen[bytes] | None = None
        self._pid = 0
        for inner in PRIVATE:
            (folder / inner).mkdir(parents=True)
        self.tmp.chmod(0o1777)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / "host_key")]
        subprocess.run(key, check=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)

    @property
    def known_hosts_name(self) -> str:
        """How known_hosts names it."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    @property
    def host_key(self) -> str:
        """Type and base64 of its public host key."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def hosts_yaml(self, **more: Any) -> dict[str, Any]:
        """What stands under the host's name in hosts.yaml; its workdir lies in the host's own /tmp."""
        inner_tmp = "/tmp" if self.network else str(self.tmp)
        return {
            "ssh": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "identity": str(self.folder.parent / "keys" / "id"),
            "python": sys.executable,
            "workdir": f"{inner_tmp}/zmqrl",
            "env": {"PYTHONPATH": str(ROOT), "TMPDIR": inner_tmp},
            **more,
        }

    def boot(self, sshd: Mapping[str, str] | None = None) -> None:
        """Start the host, and its sshd with further options."""
        setup = json.dumps({"name": self.name, "mounts": self._mounts() if self.network else []})
        command = [sys.executable, "-ISu", INIT, setup]
        if self.network:
            command = self.network.command(["unshare", *NAMESPACES, "--", *command])
        with (self.folder / "host.log").open("ab") as log:
            self._init = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._init.stdout is not None
        if not select.select([self._init.stdout], [], [], WAIT_S)[0]:
            raise RuntimeError(f"{self.name} did not start: {self.log()}")
        self._pid = int(self._init.stdout.readline() or self._fail("did not start"))
        self.start_sshd(sshd or {})

    def start_sshd(self, options: Mapping[str, str] | None = None) -> None:
        """Start sshd (again); returns once it listens. `options` go before the lab's own."""
        config = self.folder / "sshd_config"
        settings = self._own() | _kernels() | dict(options or {})
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        assert self._init is not None and self._init.stdin is not None
        self._init.stdin.write(json.dumps([SSHD, "-D", "-e", "-f", str(config)]).encode() + b"\n")
        self._init.stdin.flush()
        deadline = time.monotonic() + WAIT_S
        while not self._listens():
            if time.monotonic() > deadline or self._init.poll() is not None:
                self._fail("has no sshd that listens")
            select.select([], [], [], 0.02)

    def kill_sshd(self) -> None:
        """Kill the sshd and its sessions; what they started lives on."""
        for process in self.processes():
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(f"/proc/{process.pid}/exe")).startswith("sshd"):
                    os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while self._listens():
            assert time.monotonic() < deadline, "sshd outlived SIGKILL"

    def run(self, *argv: str, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
        """Run a command on the host without ssh."""
        return subprocess.run(self.command(argv), capture_output=True, text=True, timeout=timeout_s)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on the host."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-n", "-u", "-p", "-i", "--"] if self.network else []
        return [*enter, *argv]

    def processes(self, having: str = "") -> list[Process]:
        """What runs on the host, process 1 and zombies left out; `having`: only with that text in the command line."""
        pids = _in_namespace(self._pid) if self.network else _descendants(self._pid)
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if pid != self._pid and argv and having in " ".join(argv):
                    found.append(Process(pid, tuple(argv)))
        return found

    def lose_full_packets(self) -> None:
        """All but those of ssh, in both directions: as behind a VPN whose MTU nobody knows."""
        assert self.network is not None
        rules = ["add table ip m"]
        for hook, loopback in (("input", "iifname lo"), ("output", "oifname lo")):
            rules.append(f"add chain ip m {hook} {{ type filter hook {hook} priority 0; }}")
            passing = [f"{match} accept" for match in (loopback, "tcp dport 22", "tcp sport 22")]
            rules += [f"add rule ip m {hook} {rule}" for rule in (*passing, "meta length > 700 drop")]
        self.network.run("nft", "-f", "-", text="\n".join([*rules, ""]))

    def crash(self) -> None:
        """Kill every process of the host; its kernel still answers, as after a panic of one's own making."""
        if self._init is None:
            return
        victims = [] if self.network else [process.pid for process in self.processes()]
        for pid in (self._pid, *victims):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the host; returns when its processes are gone."""
        init, self._init = self._init, None
        if init is None:
            return
        assert init.stdin is not None and init.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            init.stdin.close()
        try:
            init.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            init.kill()
            init.wait(WAIT_S)
        init.stdout.close()

    def log(self) -> str:
        """What its sshd said."""
        return (self.folder / "host.log").read_text(errors="replace")

    def _listens(self) -> bool:
        with self.network.inside() if self.network else contextlib.nullcontext():
            try:
                socket.create_connection((self.address, self.port), 1.0).close()
            except OSError:
                return False
        return True

    def _fail(self, what: str) -> int:
        raise RuntimeError(f"{self.name} {what}: {self.log()}")

    def _own(self) -> dict[str, str]:
        return {
            "Port": str(self.port),
            "ListenAddress": self.address,
            "HostKey": str(self.folder / "host_key"),
            "PidFile": str(self.folder / "sshd.pid"),
            "AuthorizedKeysFile": str(self.folder.parent / "keys" / "id.pub"),
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "PrintMotd": "no",
            "UseDNS": "no",
            "Subsystem": "sftp internal-sftp",
        }

    def _mounts(self) -> list[list[str]]:
        """Commands for process 1: its own folders and /proc, without hiding Python or the repository."""
        commands = []
        for name, private in PRIVATE.items():
            inner = self.folder / name
            for needed in sorted(_needed()):
                if needed.is_relative_to(private):
                    place = inner / needed.relative_to(private)
                    place.mkdir(parents=True, exist_ok=True)
                    commands.append(["mount", "--bind", str(needed), str(place)])
            commands.append(["mount", "--rbind", str(inner), private])
        return [
            *commands,
            ["mount", "-t", "proc", "proc", "/proc"],
            ["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", "/dev/pts"],  # own terminals
            ["mount", "--bind", "/dev/pts/ptmx", "/dev/ptmx"],
            ["mount", "-t", "tmpfs", "-o", "size=2g,mode=1777", "shm", "/dev/shm"],
        ]


def _needed() -> set[Path]:
    return {ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent}


def _in_namespace(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    yield int(name)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return found


def _kernels() -> dict[str, str]:
    """As this process has them, for each session: the hosts are this machine."""
    found = " ".join(f"{name}={os.environ[name]}" for name in KERNELS if name in os.environ)
    return {"SetEnv": found} if found else {}
