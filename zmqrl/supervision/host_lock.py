"""Who uses a host: every agent registers where all users of the machine can read it.

Entries of other users are not trusted. An entry counts when the kernel confirms it: a process of that pid and
start time lives, and belongs to the owner of the file. A liar can at most name a process of his own.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Neighbours
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError
from zmqrl.supervision import host_entry
from zmqrl.supervision.host_entry import Entry, file_name, own_entry
from zmqrl.supervision.process_table import kill

LOG = logging.getLogger(__name__)
AGENTS = Path("/tmp/zmqrl-agents")
"""The same for all users: it must not depend on anyone's environment."""
FOLDER_MODE = 0o755
MOST_FOLDERS = 10_000
MOST_GPUS = 4
REGISTER_S = 2.0
"""Registering takes milliseconds; of two agents that come at once one is in by then."""
PAUSE_S = (0.02, 0.3)
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def registered(
    boot: Boot, launcher: str, warn: Callable[[str], object], folder: Path = AGENTS
) -> Iterator[Registration]:
    """Register on this machine as the agent of `boot`; `warn` receives other runs of this user.

    `launcher`: the user and machine that it was started from; empty when that is this machine.

    Raises:
        ConfigError: Another user's run is on this host, and `boot.neighbours` is refused.
    """
    lock = HostLock(folder)
    entry = own_entry(boot, launcher)
    if not boot.plan.config.hosts.get(boot.host, HostSection()).manual:  # else whoever has its file could end it
        lock.end_former(entry)
    for warning in _acquired(lock, entry, boot.neighbours):
        warn(warning)
    try:
        yield Registration(lock, entry)
    finally:
        lock.release(entry)


class Registration:
    """This agent's entry in the register, and the GPUs of others there."""

    def __init__(self, lock: HostLock, entry: Entry) -> None:
        self._lock, self._entry = lock, entry

    def hold(self, gpus: Sequence[str]) -> None:
        """This agent's processes use these GPUs (UUIDs) and no others, at most `MOST_GPUS`."""
        if not gpus and not self._entry.gpus:
            return
        self._entry = replace(self._entry, gpus=" ".join(gpus[:MOST_GPUS]))
        try:
            self._lock.rewrite(self._entry)
        except OSError as error:
            LOG.warning("the GPUs of this run are not registered on this machine: %s", error)

    def taken_gpus(self) -> frozenset[str]:
        """UUIDs of GPUs that other runs of this user have."""
        me = self._entry
        others = [other for other in self._lock.entries() if other.uid == me.uid and other.run_id != me.run_id]
        return frozenset(uuid for other in others if other.gpus and other.is_live for uuid in other.gpus.split())


def _acquired(lock: HostLock, entry: Entry, neighbours: Neighbours) -> list[str]:
    try:
        return lock.acquire(entry, neighbours)
    except OSError as error:  # a full disk does not keep a run from the host
        LOG.warning("this run is not registered on this machine: %s", error)
        unseen = f"this run is not visible to other users: {error}"
        return [] if neighbours == "ignored" else [unseen]


class HostLock:
    """The register: a folder per user that its owner alone may write to, with a file per agent.

    No file lock is used, since any reader of a folder can lock it: an agent registers, then reads the other entries.
    """

    def __init__(self, prefix: Path = AGENTS) -> None:
        """`prefix`: the folders are `<prefix>-<uid>-*`. What counts is who owns one, and not its name."""
        self._prefix = prefix

    def acquire(self, entry: Entry, neighbours: Neighbours) -> list[str]:
        """Register `entry`; bounded by `REGISTER_S`.

        Returns:
            Warnings that name the other runs on this host, and not the host.

        Raises:
            ConfigError: A live run of another user is here, and `neighbours` is refused.
            OSError: The register cannot be written.
        """
        refuses = neighbours == "refused"
        self._remove(lambda left: not left.is_live)
        until = time.monotonic() + REGISTER_S
        while True:
            failed = self._write(entry)
            live = [other for other in self.entries() if other.is_live]
            others = [other for other in live if other.uid != entry.uid]
            if failed is not None and not (refuses and others):
                raise failed
            if not (refuses and others):
                break
            self.release(entry)
            if time.monotonic() >= until or all(time.time() - other.since > REGISTER_S for other in others):
                raise _busy(others)
            time.sleep(random.uniform(*PAUSE_S))  # both came at once and saw each other: one comes back first
        own = [other for other in live if other.uid == entry.uid and other.run_id != entry.run_id]
        if neighbours == "ignored":
            return []
        return [*([_warning(entry, own)] if own else []), *([_shared(others)] if others else [])]

    def end_former(self, entry: Entry) -> None:
        """Kill an earlier agent of the same host of the run: its connection is dead, and its lease not over."""
        key = (entry.run_id, entry.host, entry.uid)
        for former in self.entries():
            if (former.run_id, former.host, former.uid) == key and former.is_live and former.process != entry.process:
                LOG.warning("the host agent of before (pid %d) is killed: the launcher has started another", former.pid)
                kill(former.process)

    def rewrite(self, entry: Entry) -> None:
        """Replace what the same agent has registered. OSError where that is impossible."""
        failed = self._write(entry)
        if failed is not None:
            raise failed

    def release(self, entry: Entry) -> None:
        """Leave the register. Never raises."""
        self._remove(lambda left: left.process == entry.process and file_name(left) == file_name(entry))

    def entries(self) -> list[Entry]:
        """The entries of all users, also of dead agents (see `is_live`)."""
        return [entry for folder, owner in self.folders() for entry in _entries(folder, owner).values()]

    def held_workers(self) -> int:
        """Cores that the live runs on this machine hold, of all users."""
        return sum(entry.held for entry in self.entries() if entry.is_live)

    def forget(self, run_id: str) -> None:
        """Remove what dead agents of this user's run left."""
        self._remove(lambda left: left.run_id == run_id and not left.is_live)

    def _remove(self, wanted: Callable[[Entry], bool]) -> None:
        for folder, owner in self.folders():
            if owner != os.getuid():
                continue
            try:
                for name, entry in _entries(folder, owner).items():
                    if wanted(entry):
                        host_entry.remove(folder, name)
                host_entry.remove_unfinished(folder)
            except OSError as error:
                LOG.warning("the run remains registered on this machine: %s", error)

    def _write(self, entry: Entry) -> OSError | None:
        try:
            with self.own_folder() as folder:
                host_entry.write(folder, entry)
        except OSError as error:
            return error
        return None

    @contextmanager
    def own_folder(self) -> Iterator[int]:
        """A folder of this user's by its descriptor; made where there is none."""
        for folder, owner in self.folders():
            if owner == os.getuid():
                yield folder
                return
        made = tempfile.mkdtemp(prefix=f"{self._prefix.name}-{os.getuid()}-", dir=self._prefix.parent)
        os.chmod(made, FOLDER_MODE)
        folder = os.open(made, _OPEN)
        try:
            yield folder
        finally:
            os.close(folder)

    def folders(self) -> Iterator[tuple[int, int]]:
        """Descriptor and owner of each, this user's first; the descriptor is closed with the next step."""
        names = [f"{self._prefix.parent}/{name}" for name in _names(self._prefix)]
        for name in sorted(names, key=_is_foreign):
            try:
                folder = os.open(name, _OPEN)
            except OSError:  # a link, a file, or closed to us
                continue
            try:
                yield folder, os.fstat(folder).st_uid
            finally:
                os.close(folder)


def _names(prefix: Path) -> list[str]:
    with os.scandir(prefix.parent) as files:
        matching = (file.name for file in files if file.name.startswith(f"{prefix.name}-"))
        return list(itertools.islice(matching, MOST_FOLDERS))


def _is_foreign(path: str) -> bool:
    try:
        return os.lstat(path).st_uid != os.getuid()
    except OSError:
        return True


def _entries(folder: int, owner: int) -> dict[str, Entry]:
    """Only entries that the named user owns count, and only agents that can be seen from here are judged."""
    own = {name: entry for name, entry in host_entry.read_all(folder).items() if entry.uid == owner}
    shown = {name: host_entry.visible(entry) for name, entry in own.items()}
    return {name: entry for name, entry in shown.items() if entry is not None}


def _busy(others: list[Entry]) -> ConfigError:
    what, fix = f"busy: {'; '.join(map(str, others[:3]))}", f"contact {others[0].user}, or exclude the host (--limit)"
    return ConfigError(what, key=(), fix=f"{fix}; zmqrl does not stop it")


def _shared(others: list[Entry]) -> str:
    return f"shared with {'; '.join(map(str, others[:3]))}; both will be slower"


def _warning(entry: Entry, own: list[Entry]) -> str:
    """Several people may share the account: whose run it is shows by where it was started."""
    runs = "; ".join(map(str, own[:3]))
    stop = neighbour_fix(own[0].run_id, own[0].launcher, entry.launcher)
    return f"another run of this account is active on this host: {runs}; both will be slower; {stop}"


def neighbour_fix(run_id: str, launcher: str, here: str) -> str:
    """What a user at `here` can do about a run of the same account that was started by `launcher`."""
    return f"if it is yours, stop it: `zmqrl down {run_id}`" if launcher == here else f"ask {launcher}"
