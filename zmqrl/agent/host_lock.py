"""Who uses a host: every agent registers where all users of the machine can read it.

The entries of others are their word. What is believed of one is what the kernel confirms: a process of that pid and
start time lives, and belongs to the owner of the file. A liar can at most name a process of his own.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import pwd
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.supervision.process_table import ProcessId, identify, is_alive

LOG = logging.getLogger(__name__)
AGENTS = Path("/tmp/zmqrl-agents")
"""The same for all users: it must not depend on anyone's environment."""
FOLDER_MODE = 0o1777
MOST_ENTRY_BYTES = 4096
MOST_ENTRIES = 10_000
MOST_TEXT = 200
YEAR_33658 = 1e12
"""Unix time; a number below it can be reckoned with."""
LOCK_S = 5.0
"""Registering takes milliseconds; whoever holds the folder longer is not registering."""
LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Entry:
    """One agent, as its file says."""

    run_id: str
    pid: int
    start_time: int
    """Clock ticks after boot, as `/proc/<pid>/stat` has it."""
    user: str
    uid: int
    since: float
    """Unix time."""
    workers: int
    host: str
    """The host's name in the run."""
    launcher: str
    """Node or address that the run was launched from."""

    @property
    def process(self) -> ProcessId:
        """The agent."""
        return ProcessId(self.pid, self.start_time)

    @property
    def is_live(self) -> bool:
        """Whether the agent runs, and belongs to the user whose entry this is."""
        try:
            owner = os.stat(f"/proc/{self.pid}").st_uid
        except OSError:
            return False
        return owner == self.uid and is_alive(self.process)

    def __str__(self) -> str:
        age = _age(time.time() - self.since)
        return f"run {self.run_id} of user {self.user}, since {age} ({self.workers} workers, from {self.launcher})"


@contextmanager
def registered(boot: Boot, launcher: str, warn: Callable[[str], object], folder: Path = AGENTS) -> Iterator[None]:
    """Be in the register of this machine as the agent of `boot`; `warn` is told of other runs of this user.

    `launcher`: the node or address that it was started from; empty when that is this machine.

    An agent that was started here is not refused or warned for anything: whoever sits at a machine knows it.

    Raises:
        ConfigError: The agent was started over SSH and another user's run is on this host, or the register cannot
            be trusted.
    """
    lock = HostLock(folder)
    entry = own_entry(boot, launcher)
    if (warning := _acquired(lock, entry, boot.remote)) is not None:
        warn(warning)
    try:
        yield
    finally:
        lock.release(entry)


def _acquired(lock: HostLock, entry: Entry, remote: bool) -> str | None:
    try:
        return lock.acquire(entry, remote)
    except ConfigError as error:
        if remote:
            raise
        LOG.warning("not registered on this machine: %s", error)
        return None
    except OSError as error:  # a full disk keeps nobody from the host
        LOG.warning("not registered on this machine: %s", error)
        return f"{entry.host}: other users are not told of this run: {error}" if remote else None


def own_entry(boot: Boot, launcher: str) -> Entry:
    """This process as the agent of `boot`."""
    me = identify(os.getpid())
    assert me is not None
    return Entry(
        run_id=boot.plan.run_id,
        pid=me.pid,
        start_time=me.start_time,
        user=user_name(os.getuid()),
        uid=os.getuid(),
        since=time.time(),
        workers=len(boot.workers),
        host=boot.host,
        launcher=launcher or socket.gethostname(),
    )


class HostLock:
    """The register: one file per agent in a folder that everyone may add to and nobody may take from."""

    def __init__(self, folder: Path = AGENTS) -> None:
        self._folder = folder

    def acquire(self, entry: Entry, remote: bool) -> str | None:
        """Register `entry`; bounded by `LOCK_S`.

        Returns:
            For a `remote` agent a warning that names this user's other runs on this host, if any.

        Raises:
            ConfigError: A live run of another user is here (`remote` alone), or the folder cannot be trusted.
        """
        with self._held() as folder:
            live = self._sweep(folder)
            if remote:
                _refuse(entry, [other for other in live if other.uid != entry.uid])
            _write(folder, _name(entry), json.dumps(to_json(entry)).encode())
        own = [other for other in live if other.uid == entry.uid and other.run_id != entry.run_id]
        return _warning(entry, own) if remote and own else None

    def release(self, entry: Entry) -> None:
        """Leave the register. Never raises for a folder that is gone or refused."""
        try:
            with self._held() as folder:
                left = _read(folder, _name(entry))
                if left is not None and left.process == entry.process:
                    _unlink(folder, _name(entry))
        except (ConfigError, OSError) as error:
            LOG.warning("still in the register of this machine: %s", error)

    def entries(self) -> list[Entry]:
        """Everyone's, also of agents that are dead (`is_live` tells)."""
        try:
            folder = self._open()
        except (ConfigError, OSError):
            return []
        try:
            return list(_entries(folder).values())
        finally:
            os.close(folder)

    def forget(self, run_id: str) -> None:
        """Remove what dead agents of this user's run left."""
        with self._held() as folder:
            for name, entry in _entries(folder).items():
                if entry.run_id == run_id and entry.uid == os.getuid() and not entry.is_live:
                    _unlink(folder, name)

    def _sweep(self, folder: int) -> list[Entry]:
        """The live ones; files of this user's dead agents go."""
        live = []
        for name, entry in _entries(folder).items():
            if entry.is_live:
                live.append(entry)
            elif entry.uid == os.getuid():
                _unlink(folder, name)
        for name in _names(folder, _is_unfinished):
            _unlink(folder, name)
        return live

    def _open(self) -> int:
        """The folder by descriptor: nobody can put another in its place afterwards."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ConfigError(
                f"{self._folder} must be a directory that everyone may read, and no link ({error.strerror}): "
                "its owner or root removes it"
            ) from error
        found = os.fstat(folder)
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != FOLDER_MODE:
            os.fchmod(folder, FOLDER_MODE)
        elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            os.close(folder)
            raise ConfigError(
                f"{self._folder} of user {user_name(found.st_uid)} lets anyone remove the entries of others: "
                f"its owner or root mends it with `chmod 1777 {self._folder}`"
            )
        return folder

    @contextmanager
    def _held(self) -> Iterator[int]:
        if not os.path.lexists(self._folder):
            self._make()
        folder = self._open()
        try:
            self._lock(folder, time.monotonic() + LOCK_S)
            yield folder
        finally:
            os.close(folder)

    def _make(self) -> None:
        """It appears with its mode: nobody finds it closed."""
        made = self._folder.with_name(f".{self._folder.name}.{secrets.token_hex(4)}")
        os.mkdir(made, 0o700)
        try:
            os.chmod(made, FOLDER_MODE)
            os.rename(made, self._folder)
        except OSError:
            os.rmdir(made)
            if not os.path.lexists(self._folder):
                raise

    def _lock(self, folder: int, until: float) -> None:
        """The folder's own flock: there is no file that someone else could own."""
        while True:
            try:
                return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise ConfigError(
                        f"{self._folder} has been locked for {LOCK_S:g} s: `fuser -v {self._folder}` names by whom"
                    ) from error
            time.sleep(LOOK_EVERY_S)  # flock has no time-out


def user_name(uid: int) -> str:
    """The login name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _refuse(entry: Entry, others: list[Entry]) -> None:
    if others:
        raise ConfigError(
            f"{entry.host}: busy: {'; '.join(map(str, others[:3]))}\n"
            f"   zmqrl does not touch it: ask {others[0].user}, or leave the host out (--limit)"
        )


def _warning(entry: Entry, own: list[Entry]) -> str:
    runs = "; ".join(map(str, own[:3]))
    return f"{entry.host}: your {runs} is here too, and slows both down: `zmqrl down {own[0].run_id}` ends it"


def _name(entry: Entry) -> str:
    return f"{quote(entry.run_id, safe='')}-{quote(entry.host, safe='')}.json"


def _write(folder: int, name: str, content: bytes) -> None:
    """Whole or not at all, and never through a link that someone laid there."""
    temporary = f".{secrets.token_hex(8)}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        os.write(file, content)
        os.fchmod(file, 0o644)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _unlink(folder, temporary)
        raise
    finally:
        os.close(file)


def _unlink(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _entries(folder: int) -> dict[str, Entry]:
    names = _names(folder, lambda file: file.name.endswith(".json"))
    return {name: entry for name in names if (entry := _read(folder, name)) is not None}


def _names(folder: int, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    with os.scandir(folder) as files:
        return [file.name for file in itertools.islice(files, MOST_ENTRIES) if wanted(file)]


def _is_unfinished(file: os.DirEntry[str]) -> bool:
    """Of this user, who was killed while he wrote it: whoever looks holds the folder."""
    try:
        return file.name.startswith(".") and file.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _read(folder: int, name: str) -> Entry | None:
    """What a file says, if it is one of ours in form and its owner speaks of himself."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)  # it may be a fifo
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_ENTRY_BYTES:
            return None
        return _parsed(os.read(file, MOST_ENTRY_BYTES), found.st_uid)
    except OSError:
        return None
    finally:
        os.close(file)


def _parsed(content: bytes, owner: int) -> Entry | None:
    try:
        entry = Entry(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = (entry.pid, entry.uid, entry.workers)
    texts = (entry.run_id, entry.host, entry.launcher)
    sound = (
        all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        and type(entry.start_time) is int
        and all(isinstance(text, str) and len(text) <= MOST_TEXT and text.isprintable() for text in texts)
        and isinstance(entry.since, (int, float))
        and 0 <= entry.since < YEAR_33658
    )
    return replace(entry, user=user_name(owner)) if sound and entry.uid == owner and entry.pid > 0 else None


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
