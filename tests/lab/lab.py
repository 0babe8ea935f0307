"""Several hosts, the switch between them, and a laptop beside the first."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import WAIT_S

from . import kernel
from .host import SSHD, Host
from .kernel import LabUnavailable, Network
from .switch import Switch

PLACE = "/var/tmp"
"""Not under /tmp: each host sees a /tmp of its own."""
PREFIX = "zmqrl-lab-"
FIRST_ADDRESS = 10
BIND_SSH = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Lab:
    """`count` hosts named h0, h1, ... Closed by `close` or at the end of `with`; a killed owner takes it along."""

    def __init__(self, count: int, isolated: bool | None = None, sshd: Mapping[str, str] | None = None) -> None:
        """Args: isolated: True asks for hosts with namespaces, False for loopback ports, None for the best there is.

        Raises: LabUnavailable with the reason.
        """
        if not os.access(SSHD, os.X_OK):
            raise LabUnavailable(f"no {SSHD} here: apt-get install openssh-server")
        self.why_not_isolated = "" if isolated is not False else "not asked for"
        if isolated is not False:
            try:
                kernel.check()
            except LabUnavailable as reason:
                if isolated:
                    raise
                self.why_not_isolated = str(reason)
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        self.folder.chmod(0o755)
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.shared = self.folder / "shared"
        """A folder that every host sees under this name, as an NFS mount."""
        self.hosts: list[Host] = []
        self._home: Path | None = None
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._lock.close)
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._make(count, sshd or {})
        except BaseException:
            self.close()
            raise

    @property
    def isolated(self) -> bool:
        """Whether the hosts have networks, processes and /tmp of their own."""
        return not self.why_not_isolated

    def _make(self, count: int, sshd: Mapping[str, str]) -> None:
        self.shared.mkdir()
        (self.folder / "keys").mkdir(mode=0o700)
        self.identity = self.folder / "keys" / "id"
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "zmqrl lab", "-f", str(self.identity)]
        subprocess.run(key, check=True, timeout=WAIT_S)
        self._switch = Switch() if self.isolated else None
        if self._switch:
            self._closing.callback(self._switch.close)
        for index in range(count):
            self.hosts.append(self._host(index))
            self._closing.callback(self.hosts[-1].close)
        for host in self.hosts:
            host.boot(sshd)
        self._write_laptop_ssh()

    def _host(self, index: int) -> Host:
        name, folder = f"h{index}", self.folder / f"h{index}"
        if self._switch is None:
            if os.geteuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, and only its service makes it
            return Host(name, "127.0.0.1", _free_port(), folder, None)
        network = Network()
        self._closing.callback(network.close)
        host = Host(name, f"10.77.0.{FIRST_ADDRESS + index}", 22, folder, network)
        self._switch.plug(index, network, host.address)
        return host

    def _write_laptop_ssh(self) -> None:
        """What lies in ~/.ssh for `run_here`."""
        folder = self.folder / "laptop-ssh"
        folder.mkdir(mode=0o700)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(f"{host.known_hosts_name} {host.host_key}\n" for host in self.hosts))
        self.ssh_config = folder / "config"
        named = [f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n" for host in self.hosts]
        rest = {
            "User": getpass.getuser(),
            "IdentityFile": self.identity,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
        }
        every = "".join(f"  {key} {value}\n" for key, value in rest.items())
        self.ssh_config.write_text("".join([*named, "Host *\n", every]))

    def hosts_yaml(self, *indices: int, **more: Any) -> dict[str, dict[str, Any]]:
        """What stands under `hosts` in hosts.yaml for the hosts of these indices (none: all)."""
        chosen = [self.hosts[index] for index in indices] or self.hosts
        return {host.name: host.hosts_yaml(**more) for host in chosen}

    def by_own_names(self, hosts: Mapping[str, Any]) -> dict[str, Any]:
        """Sections of hosts, each an alias in ~/.ssh/config: a hosts file may not have a machine under two names.

        Nor under two aliases, unless each has the key of a server of its own.
        """
        named = {name: section for name, section in hosts.items() if "ssh" in section}
        alias = "Host {0}\n  HostName {1}\n  HostKeyAlias {0}\n"
        aliases = "".join(alias.format(name, section["ssh"]) for name, section in named.items())
        known = [line.partition(" ")[::2] for line in self.known_hosts.read_text().splitlines()]
        with self.known_hosts.open("a") as file:
            for name, section in named.items():
                names = (section["ssh"], f"[{section['ssh']}]:{section.get('port', 22)}")
                file.write("".join(f"{name} {key}\n" for host, key in known if host in names))
        self.ssh_config.write_text(aliases + self.ssh_config.read_text())
        return {**hosts, **{name: {**section, "ssh": name} for name, section in named.items()}}

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """This thread, and the threads and processes that it starts, are in host 0's network."""
        network = self.hosts[0].network
        with network.inside() if network else contextlib.nullcontext():
            yield

    def here_command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on the laptop: host 0's network, this lab's ~/.ssh, else this machine."""
        network = self.hosts[0].network
        if network is None:
            return list(argv)
        if self._home is None:
            self._home = Path(pwd.getpwuid(os.getuid()).pw_dir)
            self._closing.enter_context(_ssh_folder(self._home))
        own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BIND_SSH, "sh"]
        return network.command([*own, str(self.known_hosts.parent), str(self._home / ".ssh"), *argv])

    def run_here(self, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on the laptop; its pid is that of `argv` itself. Arguments as of `subprocess.Popen`."""
        return subprocess.Popen(self.here_command(argv), **popen)

    def link(self, index: int, up: bool) -> None:
        """Pull or plug in the network cable of a host; nothing is told to either side."""
        self._need_switch().link(index, up)

    def partition(self, one: int, other: int) -> None:
        """Two hosts no longer hear each other, until `heal`."""
        self._need_switch().cut(self.hosts[one].address, self.hosts[other].address)

    def heal(self) -> None:
        """Undo every partition."""
        self._need_switch().heal()

    def delay(self, index: int, ms: float, loss: float = 0.0) -> None:
        """Slow the wire of a host by so much each way and lose that fraction of frames; 0 and 0 undo it."""
        self._need_switch().slow(index, ms, loss)

    def power_off(self, index: int) -> None:
        """As if the plug was pulled: the others hear nothing any more. `link` and `boot` bring it back."""
        self.link(index, False)
        self.hosts[index].crash()

    def _need_switch(self) -> Switch:
        if self._switch is None:
            raise LabUnavailable(f"no networks to cut: {self.why_not_isolated}")
        return self._switch

    def close(self) -> None:
        """End every host; nothing is left."""
        self._closing.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _ssh_folder(home: Path) -> Iterator[None]:
    """Something to mount on, if need be; removed again unless another lab has mounted on it: it would lose that."""
    held = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        folder = home / ".ssh"
        made = not folder.is_dir()
        folder.mkdir(mode=0o700, exist_ok=True)
        yield
        if made:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder.rmdir()
    finally:
        os.close(held)


def _sweep() -> None:
    """Remove the folders of labs whose owner was killed: it no longer holds their lock."""
    for lock in Path(PLACE).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
