"""Records of the owners of a run directory, `.owner/<n>`: read, written and created, also on NFS."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from zmqrl.config.paths import content_of
from zmqrl.supervision.process_table import ProcessId, is_alive

FOLDER = ".owner"
RECORD_BYTES, MOST_BYTES = 1024, 4096
WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of `link` on a file system that has none."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = "/proc/self/ns/pid"
OF_MACHINE = "pid:[4026531836]"
"""The first pid namespace of a kernel, in which the processes of all others are seen too."""


@dataclass(frozen=True)
class OwnerRecord:
    """One owner, read from its file."""

    run_id: str
    host: str
    machine: str
    """Kernel and pid namespace: who has the same one can see the owner's process."""
    pid: int
    start_time: int
    renewals: int = 0
    released: bool = False

    @property
    def is_here(self) -> bool:
        """Whether its process can be seen from this one."""
        return self.machine == machine()

    @property
    def is_alive(self) -> bool:
        """Whether its process runs; only `is_here` makes this mean anything."""
        return is_alive(ProcessId(self.pid, self.start_time))

    @property
    def was_before_boot(self) -> bool:
        """Whether its machine, by the name of this one, has started again since."""
        return self.host == socket.gethostname() and self.machine.partition(" ")[0] != machine().partition(" ")[0]

    @property
    def process(self) -> str:
        """Its process, as messages name it."""
        return f"pid {self.pid} on {self.host}"

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.process})"


def create(path: Path, content: bytes, durable: bool = False) -> bool:
    """Create a record that every user can read. False when another process has created it first.

    `durable`: it survives a power cut whole once its directory is synced.

    By a link to a file of its own. With O_EXCL two NFS clients with the same uptime and pid both succeed: the server
    takes the second request for a repetition of the first.
    """
    own = path.with_name(f".{uuid.uuid4().hex}")
    try:
        _write_new(own, content, durable)
        os.link(own, path)
    except FileExistsError:
        return own.stat().st_nlink == 2  # a server repeats a request whose answer was lost
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        try:
            _write_new(path, content, durable)
        except FileExistsError:
            return False
    finally:
        own.unlink(missing_ok=True)
    return True


def _write_new(path: Path, content: bytes, durable: bool) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def numbers(folder: Path) -> list[int]:
    """Listed, never polled by name: an NFS client remembers that a name was absent."""
    return [int(name) for name in os.listdir(folder) if name.isdecimal()]


def newest(folder: Path) -> int:
    """The number of the owner that counts; 0: none."""
    return max(numbers(folder), default=0)


def changed_at_ns(folder: Path) -> int:
    """When a name was last added or removed. Opened each time: an NFS client looks at the server then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def content(folder: Path, number: int) -> bytes:
    """Opened again each time: an NFS client looks at the server then. Empty while its owner creates it."""
    try:
        return content_of(folder / str(number), MOST_BYTES)
    except FileNotFoundError:
        return b""


def read(folder: Path, number: int) -> OwnerRecord | None:
    """The record of this owner; None while it is created, or once it is removed."""
    return decoded(content(folder, number))


def process_of(run_dir: Path) -> str:
    """The process of the newest owner, in brackets; empty where it is unknown."""
    record = read(run_dir / FOLDER, newest(run_dir / FOLDER))
    return "" if record is None else f" ({record.process})"


def is_owned(directory: Path) -> bool:
    """Whether the newest owner is active. One on another machine counts until it has released the directory."""
    owners = directory / FOLDER
    record = read(owners, newest(owners)) if owners.exists() else None
    return record is not None and not record.released and (record.is_alive or not record.is_here)


def encoded(record: OwnerRecord) -> bytes:
    """Always of one length, so that it can be written over."""
    return json.dumps(asdict(record)).encode().ljust(RECORD_BYTES - 1) + b"\n"


def decoded(text: bytes) -> OwnerRecord | None:
    """A record; None for a file that is not whole, or is none."""
    try:
        return msgspec.json.decode(text, type=OwnerRecord)
    except (ValueError, RecursionError):
        return None


def is_namespace_gone(record: OwnerRecord, path: Path) -> bool:
    """Whether this process would see the pid namespace of an owner on this machine, and does not see it."""
    boot, _, namespace = record.machine.partition(" ")
    try:
        is_visible = os.getuid() in (0, path.stat().st_uid) and machine() == f"{boot} {OF_MACHINE}"
        return is_visible and namespace not in _namespaces()
    except OSError:
        return False


def _namespaces() -> set[str]:
    """Pid namespaces of the processes that this user may look at."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{name}/ns/pid"))
    return found


def machine() -> str:
    """Kernel and pid namespace of this process."""
    try:
        return f"{BOOT_ID.read_text(encoding='utf-8').strip()} {os.readlink(PID_NAMESPACE)}"
    except OSError:
        return socket.gethostname()
