"""Who uses a host: every agent registers where all users of the machine can read it.

The entries of others are their word. What is believed of one is what the kernel confirms: a process of that pid and
start time lives, and belongs to the owner of the file. A liar can at most name a process of his own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zmqrl.agent import host_entry
from zmqrl.agent.host_entry import Entry, file_name, own_entry, user_name
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError

LOG = logging.getLogger(__name__)
AGENTS = Path("/tmp/zmqrl-agents")
"""The same for all users: it must not depend on anyone's environment."""
FOLDER_MODE = 0o1777
LOCK_S = 5.0
"""Registering takes milliseconds; whoever holds the folder longer is not registering."""
LOOK_EVERY_S = 0.02


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
            host_entry.write(folder, entry)
        own = [other for other in live if other.uid == entry.uid and other.run_id != entry.run_id]
        return _warning(entry, own) if remote and own else None

    def release(self, entry: Entry) -> None:
        """Leave the register. Never raises for a folder that is gone or refused."""
        try:
            with self._held() as folder:
                left = host_entry.read(folder, file_name(entry))
                if left is not None and left.process == entry.process:
                    host_entry.remove(folder, file_name(entry))
        except (ConfigError, OSError) as error:
            LOG.warning("still in the register of this machine: %s", error)

    def entries(self) -> list[Entry]:
        """Everyone's, also of agents that are dead (`is_live` tells)."""
        try:
            folder = self._open()
        except (ConfigError, OSError):
            return []
        try:
            return list(host_entry.read_all(folder).values())
        finally:
            os.close(folder)

    def forget(self, run_id: str) -> None:
        """Remove what dead agents of this user's run left."""
        with self._held() as folder:
            for name, entry in host_entry.read_all(folder).items():
                if entry.run_id == run_id and entry.uid == os.getuid() and not entry.is_live:
                    host_entry.remove(folder, name)

    def _sweep(self, folder: int) -> list[Entry]:
        """The live ones; files of this user's dead agents go."""
        live = []
        for name, entry in host_entry.read_all(folder).items():
            if entry.is_live:
                live.append(entry)
            elif entry.uid == os.getuid():
                host_entry.remove(folder, name)
        host_entry.remove_unfinished(folder)
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


def _refuse(entry: Entry, others: list[Entry]) -> None:
    if others:
        raise ConfigError(
            f"{entry.host}: busy: {'; '.join(map(str, others[:3]))}\n"
            f"   zmqrl does not touch it: ask {others[0].user}, or leave the host out (--limit)"
        )


def _warning(entry: Entry, own: list[Entry]) -> str:
    runs = "; ".join(map(str, own[:3]))
    return f"{entry.host}: your {runs} is here too, and slows both down: `zmqrl down {own[0].run_id}` ends it"
